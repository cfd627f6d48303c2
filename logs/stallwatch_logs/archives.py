"""Stream the members of zip and tar archives without extracting them to disk."""

from __future__ import annotations

import io
import itertools
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO, cast

from stallwatch_logs.decompress import Kind, expanded, kind_of
from stallwatch_logs.inputs import CHUNK, InputError, Limits, Meter, TimeIsUp

_HEADER = 1024 * 1024  # maximum size of the headers of a file in a tar archive, in bytes
_DIRECTORY = 16 * 1024 * 1024  # maximum size of a zip archive's directory, in bytes; enough for 100,000 files
_KEYWORDS = 1000  # maximum number of keywords in the global headers of a tar archive
_HEADERS = 20  # maximum number of tar entries (including folders and links) for each permitted file

Chunks = Iterator[bytes]


@dataclass(frozen=True)
class Member:
    """A file in an archive, with its name and size."""

    name: str
    size: int
    chunks: Callable[[], Chunks]


def zip_members(open_archive: Callable[[], BinaryIO], size: int, limits: Limits) -> list[Member]:
    """Return the files in a zip archive. ``size`` is the size of the archive in bytes."""
    import lzma
    import zipfile

    try:
        opened = open_archive()
        _check_directory(opened)
        archive = zipfile.ZipFile(opened)
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError) as error:
        raise InputError(
            f"the zip archive is corrupt ({error})", "create or copy the archive again"
        ) from error
    # All members share the meter because overlapping members repeat the same bytes.
    meter = Meter(limits, taken=size)
    infos = [info for info in archive.infolist() if not info.is_dir()]

    def reader(info: zipfile.ZipInfo) -> Callable[[], Chunks]:
        def read() -> Chunks:
            try:
                with archive.open(info) as stream:
                    yield from _counted(_any(cast(BinaryIO, stream), meter), meter)
            except RuntimeError as error:
                raise InputError(
                    f"the file cannot be read ({error})", "unpack the archive with its password"
                ) from error
            except (zipfile.BadZipFile, OSError, EOFError, ValueError, zlib.error, lzma.LZMAError) as error:
                raise InputError(
                    f"the file is corrupt ({error})", "create or copy the archive again"
                ) from error

        return read

    return [Member(info.filename, info.file_size, reader(info)) for info in infos]


def _check_directory(archive: BinaryIO) -> None:
    """Raise an error if the directory of a zip archive, which zipfile stores in memory, is too large."""
    import zipfile

    end = zipfile._EndRecData(archive)  # type: ignore[attr-defined]
    if end is not None and end[zipfile._ECD_SIZE] > _DIRECTORY:  # type: ignore[attr-defined]
        raise InputError(
            f"the archive's list of files is larger than {_DIRECTORY // 1024**2} MiB; no file was read",
            "unpack the archive and specify the path of the folder",
        )


def _counted(chunks: Chunks, meter: Meter) -> Chunks:
    for chunk in chunks:
        yield meter.give(chunk)


def _any(stream: BinaryIO, outer: Meter) -> Chunks:
    """Return the bytes of an archive member. If the member is a compressed file, decompress it."""
    head = stream.read(512)
    kind = kind_of(head)
    if kind in ("zip", "tar"):
        raise nested(kind)
    return expanded(resumed(head, stream), kind, outer.inner())


def resumed(head: bytes, stream: Any) -> BinaryIO:
    """Return a stream of the bytes that have been read from ``stream``, followed by its remaining bytes."""
    return cast(BinaryIO, _Joined(itertools.chain([head], iter(lambda: stream.read(CHUNK), b""))))


def nested(kind: str) -> InputError:
    """Return the error for an archive inside another archive. Such archives are not read."""
    return InputError(
        f"the file is a {kind} archive inside an archive and was not read",
        "unpack it and specify the path of the folder",
    )


class TarFile:
    """A tar archive, which can be compressed. Its members are read in one pass from beginning to end."""

    def __init__(self, open_archive: Callable[[], BinaryIO], kind: Kind, limits: Limits) -> None:
        self._open = open_archive
        self._kind = kind
        self._limits = limits
        self._pass: Iterator[tuple[int, str, int, BinaryIO]] | None = None
        self._meter = Meter(limits)
        self._at = -1
        self._reported = ""  # error of the whole archive, stored so that it is reported only once

    def members(self) -> tuple[list[Member], InputError | None]:
        """Return the files in the archive.

        If the archive is damaged after these files, also return the error.
        """
        found: list[Member] = []
        try:
            for index, name, size, _ in self._walk(self._limits.for_part(), self._meter):
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
            self._meter = Meter(self._limits)
            self._pass = self._walk(self._limits, self._meter)
        try:
            for index, _, _, stream in self._pass:
                self._at = index
                if index == wanted:
                    yield from _counted(_any(stream, self._meter), self._meter)
                    return
        except InputError as error:
            if error.message != self._reported or isinstance(error, TimeIsUp):
                raise
        except tarfile.TarError as error:  # the archive ends inside a member
            raise InputError(
                f"the file is truncated ({error})", "create or copy the archive again"
            ) from error

    def _walk(self, limits: Limits, members: Meter) -> Iterator[tuple[int, str, int, BinaryIO]]:
        """Yield the files in the archive, each with its index, name, size, and content.

        The meter ``members`` counts the bytes of the unpacked archive as its input.
        """
        import tarfile

        def taken(portions: Chunks) -> Chunks:
            for portion in portions:
                members.taken += len(portion)
                yield portion

        meter, index = Meter(limits), 0
        with self._open() as raw:
            stream = _Joined(taken(expanded(raw, self._kind, meter)))
            try:
                with tarfile.open(
                    fileobj=cast(BinaryIO, stream), mode="r|", tarinfo=_bounded_headers()
                ) as archive:
                    while (info := archive.next()) is not None:
                        archive.members.clear()  # type: ignore[attr-defined]  # tarfile would keep all members
                        content = archive.extractfile(info) if info.isreg() else None
                        if content is not None:
                            yield index, info.name, info.size, cast(BinaryIO, content)
                        index += 1
                        if index > _HEADERS * limits.members:
                            raise InputError(
                                f"the archive contains more than {index - 1:,} files, folders, and links; the"
                                " rest was not read",
                                "unpack the archive and specify the path of the folder",
                            )
            except (tarfile.TarError, EOFError, OSError, RecursionError) as error:
                raise InputError(
                    f"the tar archive is corrupt ({error}); only the part before the error was read",
                    "create or copy the archive again",
                ) from error


def _bounded_headers() -> type:
    import tarfile

    class Headers:
        """A stream that limits the number of bytes in the headers of one file."""

        def __init__(self, stream: Any) -> None:
            self._stream, self._left = stream, _HEADER
            self.tell = stream.tell

        def read(self, size: int) -> Any:
            self._left -= size
            if self._left < 0:
                raise tarfile.ReadError("a header claims to be larger than 1 MiB")
            return self._stream.read(size)

    class Bounded(tarfile.TarInfo):
        """A member of a tar archive, with limits on the sizes of its extended headers and its list of holes.

        Without these limits, tarfile reads as many bytes as the archive declares.
        """

        @classmethod
        def fromtarfile(cls, archive: tarfile.TarFile) -> Bounded:
            stream: Any = archive.fileobj
            archive.fileobj = cast(Any, Headers(stream))
            try:
                return super().fromtarfile(archive)
            finally:
                archive.fileobj = stream

        def _proc_member(self, archive: tarfile.TarFile) -> tarfile.TarInfo:
            if len(archive.pax_headers) > _KEYWORDS:  # every global header can add keywords
                raise tarfile.ReadError("the global headers contain too many keywords")
            return cast(tarfile.TarInfo, super()._proc_member(archive))  # type: ignore[misc]

    return Bounded


class _Joined(io.RawIOBase):
    """A file-like object that reads bytes from an iterator."""

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
