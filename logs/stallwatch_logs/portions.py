"""The bytes of a plain file from one offset to another, in portions that end where its cells do.

A cell that comes as one portion need not be put together: the copy would take a tenth of all the time.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from io import RawIOBase

from stallwatch_rules.lines.reader import MAX_LINE
from stallwatch_rules.matching.cells import cell_end

Room = Callable[[], memoryview]  #: gives memory for the next bytes


def edge(file: int, boundary: int) -> tuple[int, bool]:
    """Where the cell ends whose grid line lies at ``boundary``, and whether it ends inside of a line."""
    before = os.pread(file, MAX_LINE + 1, boundary - 1)
    end = cell_end(before, 1) or len(before)
    return boundary - 1 + end, before[end - 1 : end] not in (b"\n", b"\r", b"\0")


def cells(file: int, start: int, end: int | None, size: int) -> Iterator[bytes]:
    """A file's bytes; without ``end`` all that are there."""
    while end is None or start < end:
        behind = edge(file, (start // size + 1) * size)[0]
        portion = os.pread(file, (behind if end is None else min(behind, end)) - start, start)
        if not portion:
            return
        yield portion
        start += len(portion)


def poured(raw: RawIOBase, room: Room) -> Iterator[int]:
    """Read a file on into whatever memory ``room`` gives, and how many bytes each time.

    Memory that was used before is filled in half the time that new memory takes.
    """
    while count := raw.readinto(room()):
        yield count


def is_sparse(path: str | int) -> bool:
    """Whether a file, by its path or its descriptor, has holes, or is gone: whoever reads it has to look."""
    try:
        status = os.stat(path)  # noqa: PTH116
    except OSError:
        return True
    return getattr(status, "st_blocks", 0) * 512 < status.st_size
