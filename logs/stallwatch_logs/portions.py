"""Split a file's bytes into portions: the head, from which its kind is determined, and then its chunks.

Pipes, archives and disks return portions of different sizes, but the result for a log must not depend on the
sizes. Portions end where chunks end, so that a chunk is not copied: copying would take a tenth of the total
time.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from stallwatch_logs.inputs import InputError
from stallwatch_rules.lines.long_lines import MAX_LINE
from stallwatch_rules.scan.chunks import chunk_end

HEAD = 256 * 1024  #: number of bytes in a head
_NEAR = 4096  # most lines are shorter than this number of bytes


def head_first(portions: Iterator[bytes]) -> Iterator[bytes]:
    """Yield the head of ``HEAD`` bytes, or fewer if the file is smaller, and then the remaining portions.

    If an error occurs in the head, the bytes before it are yielded before the error is raised.
    """
    held: list[bytes] = []
    missing = HEAD
    broken: InputError | OSError | None = None
    try:
        while missing > 0 and (portion := next(portions, None)) is not None:
            held.append(portion)
            missing -= len(portion)
    except (InputError, OSError) as error:
        broken = error
    begun = b"".join(held)
    if begun:
        yield begun[:HEAD]
    if begun[HEAD:]:
        yield begun[HEAD:]
    if broken is not None:
        raise broken
    yield from portions


def _edge(file: int, boundary: int) -> int:
    """Return the offset of the end of the line in which ``boundary`` lies, where the chunk ends."""
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
