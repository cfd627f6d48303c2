"""Split a file's bytes into portions: first its head, which shows its kind, then portions up to chunk ends.

Pipes, archives and disks return portions of different sizes, but the result for a log must not depend on the
sizes. A chunk that arrives as one portion is not copied, because the copy would take a tenth of the total
time.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from stallwatch_logs.inputs import InputError
from stallwatch_rules.lines.long_lines import MAX_LINE
from stallwatch_rules.scan.chunks import chunk_end

HEAD = 256 * 1024  #: number of bytes in a head
_NEAR = 4096  # number of bytes that contain the end of most lines


def head_first(portions: Iterator[bytes], size: int = HEAD) -> Iterator[bytes]:
    """Yield the bytes of the portions, first the head with ``size`` bytes, or fewer in a smaller file.

    Bytes before an error are yielded before the error is raised.
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


def _edge(file: int, boundary: int) -> int:
    """Return the end of the chunk at ``boundary``, which is the next end of a line."""
    behind = os.pread(file, _NEAR, boundary - 1)
    if b"\n" not in behind:
        behind = os.pread(file, MAX_LINE + 1, boundary - 1)
    return boundary - 1 + (chunk_end(behind, 1) or len(behind))


def file_chunks(file: int, start: int, end: int | None, size: int) -> Iterator[bytes]:
    """Yield a file's bytes from one offset to another; without ``end``, to the end of the file."""
    while end is None or start < end:
        behind = _edge(file, (start // size + 1) * size)
        portion = os.pread(file, (behind if end is None else min(behind, end)) - start, start)
        if not portion:
            return
        yield portion
        start += len(portion)
