"""Decompress gzip, xz, bzip2, and zstandard files in portions of limited size.

If a file is incomplete or corrupt, its valid content before the error is returned. Logs are often copied
while they are still being written.
"""

from __future__ import annotations

import contextlib
import os
import sys
import zlib
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, Literal, Protocol

from stallwatch_logs.inputs import CHUNK, InputError, Meter, is_sparse

Kind = Literal["gzip", "xz", "bzip2", "zstandard", "zip", "tar", "plain"]

_PIECE = 64 * 1024  # number of compressed bytes passed in each call to a decompressor
_MEMORY = 512 * 1024**2  # maximum size of the dictionary of a decompressor, in bytes


def kind_of(head: bytes) -> Kind:
    """Determine the kind of a file, such as a compression format, from its first bytes (at least 512)."""
    if head.startswith(b"\x1f\x8b\x08"):
        return "gzip"
    if head.startswith(b"\xfd7zXZ\0"):
        return "xz"
    if head.startswith(b"BZh") and head[4:10] in (b"1AY&SY", b"\x17rE8P\x90"):
        return "bzip2"
    if head.startswith(b"\x28\xb5\x2f\xfd"):
        return "zstandard"
    if head.startswith((b"PK\x03\x04", b"PK\x05\x06")):
        return "zip"
    if head[257:262] == b"ustar":
        return "tar"
    return "plain"


def expanded(raw: BinaryIO, kind: Kind, meter: Meter) -> Iterator[bytes]:
    """Yield the bytes of a stream. If ``kind`` is a compression format, decompress the bytes."""
    if kind == "gzip":
        return _gzip(raw, meter)
    if kind == "xz":
        import lzma

        return _members(raw, kind, meter, lambda: lzma.LZMADecompressor(memlimit=_MEMORY), _PIECE)
    if kind == "bzip2":
        import bz2

        return _members(raw, kind, meter, bz2.BZ2Decompressor, _PIECE)
    if kind == "zstandard":
        # The zstandard decompressor cannot limit the output of a call, so each call receives little input.
        return _gathered(_members(raw, kind, meter, _Zstandard, 2048))
    try:
        sparse = is_sparse(raw.fileno())
    except (OSError, AttributeError):  # the stream is not a file of the operating system
        sparse = False
    return _without_holes(raw) if sparse else iter(lambda: raw.read(CHUNK), b"")


def _without_holes(raw: BinaryIO) -> Iterator[bytes]:
    """Yield the bytes of a sparse file without its holes, which can contain terabytes of null bytes."""
    file, at = raw.fileno(), 0
    while True:
        try:
            at = os.lseek(file, at, os.SEEK_DATA)
            end = os.lseek(file, at, os.SEEK_HOLE)
        except OSError:  # the remaining part of the file is a hole
            return
        while at < end and (portion := os.pread(file, min(CHUNK, end - at), at)):
            at += len(portion)
            yield portion
        if at < end:  # the file was truncated while it was read
            return


class BrokenStream(InputError):
    """An error for compressed bytes that can be read but are invalid."""


def _gzip(raw: BinaryIO, meter: Meter) -> Iterator[bytes]:
    """Decompress gzip. If isal is installed, use it, because it is more than twice as fast as zlib.

    If a piece of the file contains an error, isal does not return the text that precedes the error in this
    piece. In this case, the file is reread with zlib.
    """
    isal_zlib = _isal_zlib()
    seekable = getattr(raw, "seekable", None)
    if isal_zlib is None or seekable is None or not seekable():
        yield from _members(raw, "gzip", meter, _Gzip, _PIECE)
        return
    start, given = raw.tell(), 0
    try:
        for portion in _members(raw, "gzip", meter, lambda: _Gzip(isal_zlib), _PIECE):
            given += len(portion)
            yield portion
    except BrokenStream:
        raw.seek(start)
        for portion in _members(raw, "gzip", meter.inner(), _Gzip, _PIECE):
            if len(portion) > given:
                yield portion[given:]
            given = max(0, given - len(portion))


class _Engine(Protocol):
    """The interface that the decompressors of lzma and bz2 have in common."""

    @property
    def eof(self) -> bool: ...
    @property
    def needs_input(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, max_length: int = -1, /) -> bytes: ...


class _Broken(Exception):
    """An error in a compressed stream. ``before`` is the text that precedes the error in the faulty piece."""

    def __init__(self, before: bytes, reason: Exception) -> None:
        super().__init__(str(reason))
        self.before = before


def _isal_zlib() -> Any:
    try:
        from isal import isal_zlib
    except ImportError:
        return None
    return isal_zlib


class _Gzip:
    """A decompressor for one member of a gzip file. It uses zlib or the compatible module from isal."""

    needs_input = True

    def __init__(self, module: Any = zlib) -> None:
        self._module = module
        self._inner = module.decompressobj(31)
        self._rest = b""

    @property
    def eof(self) -> bool:
        return bool(self._inner.eof)

    @property
    def unused_data(self) -> bytes:
        return bytes(self._inner.unused_data)

    def decompress(self, data: bytes, max_length: int = -1, /) -> bytes:
        data = self._rest + data
        before = self._inner.copy() if self._module is zlib else None
        try:
            out: bytes = self._inner.decompress(data, max_length)
        except self._module.error as error:
            raise _Broken(_up_to_the_break(before, data) if before else b"", error) from error
        self._rest = self._inner.unconsumed_tail
        self.needs_input = not self._rest
        return out


def _up_to_the_break(inner: Any, data: bytes) -> bytes:
    """Return the decompressed text of the longest valid prefix of `data`.

    If a call to the decompressor fails, the output of the whole call is lost.
    """
    out, at, size = [], 0, 1 << len(data).bit_length() >> 1
    while size:
        ahead = inner.copy()
        with contextlib.suppress(zlib.error):
            out.append(ahead.decompress(data[at : at + size]))
            inner, at = ahead, at + size
        size >>= 1
    return b"".join(out)


class _Zstandard:
    needs_input = True

    def __init__(self) -> None:
        import zstandard

        self._inner = zstandard.ZstdDecompressor(max_window_size=_MEMORY // 4).decompressobj()
        self.eof = False
        self.unused_data = b""

    def decompress(self, data: bytes, _max_length: int = -1, /) -> bytes:
        import zstandard

        try:
            out = self._inner.decompress(data)
        except zstandard.ZstdError as error:
            raise _Broken(b"", error) from error
        self.eof, self.unused_data = self._inner.eof, self._inner.unused_data
        return out


def _members(
    raw: BinaryIO, kind: Kind, meter: Meter, create: Callable[[], _Engine], size: int
) -> Iterator[bytes]:
    """Decompress the members of a compressed file one after another."""
    engine: _Engine | None = None
    data = b""
    while True:
        if not data:
            data = raw.read(size)
            meter.taken += len(data)
            if not data:
                if engine is not None:
                    raise InputError(
                        f"the {kind} data is truncated", "if the end of the file is missing, copy it again"
                    )
                return
        if engine is None:
            data = data.lstrip(b"\0")  # skip null bytes that pad the space between members
            if not data:
                continue
            engine = create()
        try:
            out, data = engine.decompress(data, CHUNK), b""
            while True:
                if out:
                    yield meter.give(out)
                if engine.eof or engine.needs_input:
                    break
                out = engine.decompress(b"", CHUNK)
        except (_Broken, OSError, EOFError, ValueError, MemoryError, _lzma_error()) as error:
            if isinstance(error, _Broken) and error.before:
                yield meter.give(error.before)
            raise BrokenStream(
                f"the {kind} data is corrupt ({error}); only the part before the error was read",
                "copy or compress the file again",
            ) from error
        if engine.eof:
            data, engine = engine.unused_data, None


def _lzma_error() -> type[Exception]:
    module = sys.modules.get("lzma")
    return module.LZMAError if module else _Broken


def _gathered(portions: Iterator[bytes]) -> Iterator[bytes]:
    """Combine small portions into larger portions."""
    held: list[bytes] = []
    size = 0
    try:
        for portion in portions:
            held.append(portion)
            size += len(portion)
            if size >= CHUNK:
                yield b"".join(held)
                held, size = [], 0
    except InputError:
        if held:
            yield b"".join(held)
        raise
    if held:
        yield b"".join(held)
