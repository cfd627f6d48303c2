"""The members of zip and tar archives, as streams: nothing is extracted to the disk."""

from __future__ import annotations

import io
import itertools
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import BinaryIO, cast

from stallwatch_logs.decompress import Kind, expanded, kind_of
from stallwatch_logs.inputs import CHUNK, InputError, Limits, Meter

_HEADER = 1024 * 1024  # what a tar header may take in memory

Chunks = Iterator[bytes]


@dataclass(frozen=True)
class Member:
    """A file in an archive."""

    name: str
    size: int
    chunks: Callable[[], Chunks]


def zip_members(open_archive: Callable[[], BinaryIO], size: int, limits: Limits) -> list[Member]:
    """The files of a zip archive; ``size`` is the archive's own."""
    import lzma
    import zipfile

    try:
        archive = zipfile.ZipFile(open_archive())
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError) as error:
        raise InputError(f"the zip archive is broken ({error})", "pack or copy it again") from error
    meter = Meter(limits, taken=size)  # of all members: overlapping ones multiply
    infos = [info for info in archive.infolist() if not info.is_dir()]

    def reader(info: zipfile.ZipInfo) -> Callable[[], Chunks]:
        def read() -> Chunks:
            try:
                with archive.open(info) as stream:
                    yield from _counted(_any(cast(BinaryIO, stream), meter), meter)
            except RuntimeError as error:
                raise InputError(
                    f"cannot be read ({error})", "unpack the archive with its password"
                ) from error
            except (zipfile.BadZipFile, OSError, EOFError, ValueError, zlib.error, lzma.LZMAError) as error:
                raise InputError(f"is broken ({error})", "pack or copy the archive again") from error

        return read

    return [Member(info.filename, info.file_size, reader(info)) for info in infos]


def _counted(chunks: Chunks, meter: Meter) -> Chunks:
    for chunk in chunks:
        yield meter.give(chunk)


def _any(stream: BinaryIO, outer: Meter) -> Chunks:
    """A member's bytes, decompressed if it is compressed itself."""
    head = stream.read(512)
    kind = kind_of(head)
    joined = _Joined(itertools.chain([head], iter(lambda: stream.read(CHUNK), b"")))
    if kind in ("zip", "tar"):
        raise InputError(f"is a {kind} archive within an archive", "unpack it and give the folder")
    return expanded(cast(BinaryIO, joined), kind, outer.inner())


class TarFile:
    """A tar archive, compressed or not. It can only be read forwards, so its members share one pass."""

    def __init__(self, open_archive: Callable[[], BinaryIO], kind: Kind, limits: Limits) -> None:
        self._open = open_archive
        self._kind = kind
        self._limits = limits
        self._pass: Iterator[tuple[int, str, int, BinaryIO]] | None = None
        self._at = -1
        self._reported = ""  # what is wrong with the archive as a whole: reported once, not for each member

    def members(self) -> tuple[list[Member], InputError | None]:
        """The files in it; where the archive breaks off, those before, and what is wrong."""
        found: list[Member] = []
        try:
            for index, name, size, _ in self._walk():
                if len(found) > self._limits.members:
                    break
                found.append(Member(name, size, lambda index=index: self._read(index)))  # type: ignore[misc]
        except InputError as error:
            self._reported = error.message
            return found, error
        return found, None

    def _read(self, wanted: int) -> Chunks:
        import tarfile

        if self._pass is None or wanted <= self._at:
            self._pass = self._walk()
        try:
            for index, _, _, stream in self._pass:
                self._at = index
                if index == wanted:
                    yield from _any(stream, Meter(self._limits))
                    return
        except InputError as error:
            if error.message != self._reported:
                raise
        except tarfile.TarError as error:  # the archive ends before its member does
            raise InputError(f"is cut off ({error})", "pack or copy the archive again") from error

    def _walk(self) -> Iterator[tuple[int, str, int, BinaryIO]]:
        import tarfile

        meter = Meter(self._limits)
        with self._open() as raw:
            stream = _Joined(expanded(raw, self._kind, meter))
            try:
                with tarfile.open(
                    fileobj=cast(BinaryIO, stream), mode="r|", tarinfo=_bounded_headers()
                ) as archive:
                    for index, info in enumerate(archive):
                        content = archive.extractfile(info) if info.isreg() else None
                        if content is not None:
                            yield index, info.name, info.size, cast(BinaryIO, content)
            except (tarfile.TarError, EOFError, OSError) as error:
                raise InputError(
                    f"the tar archive is broken ({error}); what comes before the break was read",
                    "pack or copy it again",
                ) from error


def _bounded_headers() -> type:
    import tarfile

    class Bounded(tarfile.TarInfo):
        """tarfile reads extended headers into memory, whatever size they claim."""

        def _proc_member(self, archive: tarfile.TarFile) -> tarfile.TarInfo:
            extended = self.type in (
                tarfile.XHDTYPE,
                tarfile.XGLTYPE,
                tarfile.SOLARIS_XHDTYPE,
                tarfile.GNUTYPE_LONGNAME,
                tarfile.GNUTYPE_LONGLINK,
            )
            if extended and self.size > _HEADER:
                raise tarfile.ReadError("a header claims to be larger than 1 MiB")
            return cast(tarfile.TarInfo, super()._proc_member(archive))  # type: ignore[misc]

    return Bounded


class _Joined(io.RawIOBase):
    """Portions as a stream to read from."""

    def __init__(self, portions: Chunks) -> None:
        self._portions = portions
        self._held = memoryview(b"")

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        if not self._held:
            self._held = memoryview(next(self._portions, b""))
        if size < 0:
            size = len(self._held)
        out, self._held = self._held[:size], self._held[size:]
        return bytes(out)
