"""A file's bytes in portions: its beginning first, by which it is judged, then those that end where chunks
do.

Pipes, archives and disks give portions of different sizes, and the same log is the same log by each of them.
A chunk that comes as one portion need not be put together: the copy would take a tenth of all the time.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from stallwatch_logs.inputs import InputError
from stallwatch_rules.lines.wrapped import MAX_LINE, wrap_width
from stallwatch_rules.scan.chunks import chunk_end

HEAD = 256 * 1024  #: bytes
_NEAR = 4096  # bytes in which most lines end


def head_first(portions: Iterator[bytes], size: int = HEAD) -> Iterator[bytes]:
    """The same bytes, their first portion being the beginning: ``size`` bytes, or all if there are fewer.

    What came before an error is still given before it.
    """
    held: list[bytes] = []
    missing = size
    broken: InputError | OSError | None = None
    try:
        while missing > 0 and (portion := next(portions, None)) is not None:
            held.append(portion)
            missing -= len(portion)
    except (InputError, OSError) as error:
        broken = error
    begun = b"".join(held)
    if begun:
        yield begun[:size]
    if begun[size:]:
        yield begun[size:]
    if broken is not None:
        raise broken
    yield from portions


def broken_at(head: bytes) -> int | None:
    """At how many characters a terminal broke the lines of a text that was copied from it.

    Such a text is short: a file that is longer than its head was written as it is.
    """
    return wrap_width(head) if len(head) < HEAD else None


def _edge(file: int, boundary: int) -> int:
    """Where the chunk ends whose grid line lies at ``boundary``."""
    behind = os.pread(file, _NEAR, boundary - 1)
    if b"\n" not in behind:
        behind = os.pread(file, MAX_LINE + 1, boundary - 1)
    return boundary - 1 + (chunk_end(behind, 1) or len(behind))


def file_chunks(file: int, start: int, end: int | None, size: int) -> Iterator[bytes]:
    """A file's bytes from one offset to another; without ``end`` all that are there."""
    while end is None or start < end:
        behind = _edge(file, (start // size + 1) * size)
        portion = os.pread(file, (behind if end is None else min(behind, end)) - start, start)
        if not portion:
            return
        yield portion
        start += len(portion)
