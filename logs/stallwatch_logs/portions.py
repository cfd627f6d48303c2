"""Split the bytes of a file into portions: first the head, which shows the kind of the file, then chunks.

Pipes, archives, and disks return portions of different sizes, but the result for a log must not depend on
these sizes. Each portion ends at the end of a chunk, so that no chunk needs to be copied. Copying would take
a tenth of the total time.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from stallwatch_logs.inputs import InputError
from stallwatch_rules.lines.long_lines import MAX_LINE
from stallwatch_rules.scan.chunks import chunk_end

HEAD = 256 * 1024  #: number of bytes in the head of a file
_NEAR = 4096  # number of bytes that are read first because most lines are shorter


def head_first(portions: Iterator[bytes]) -> Iterator[bytes]:
    """Yield the head, with ``HEAD`` bytes or all bytes of a smaller file, followed by the other portions.

    If an error occurs in the head, the bytes before the error are yielded before the error is raised.
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
    """Return the end of the chunk, which is the end of the line that contains the offset ``boundary``."""
    behind = os.pread(file, _NEAR, boundary - 1)
    if b"\n" not in behind:
        behind = os.pread(file, MAX_LINE + 1, boundary - 1)
    return boundary - 1 + (chunk_end(behind, 1) or len(behind))


def file_chunks(file: int, start: int, end: int | None, size: int) -> Iterator[bytes]:
    """Yield the bytes of a file from the offset ``start`` to ``end``, or to the end of the file."""
    while end is None or start < end:
        behind = _edge(file, (start // size + 1) * size)
        portion = os.pread(file, (behind if end is None else min(behind, end)) - start, start)
        if not portion:
            return
        yield portion
        start += len(portion)
