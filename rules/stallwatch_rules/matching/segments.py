"""Where the segments of a cell begin and end: what a line feed or a carriage return ends."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Numbers = NDArray[np.int64]

# A container runtime's record: only its line's first segment has the head.
_RECORD = re.compile(rb"\d{4}-\d\d-\d\dT[\d:.]+(?:Z|[+-]\d\d:\d\d) (?:stdout|stderr) [FP](?::\w+)? ")


_SLICE = 256 * 1024  # bytes that a processor's cache holds together with what is made of them


class Segments:
    """The segments of a cell's ``data`` and of its ``view``, which has as many."""

    def __init__(self, data: bytes, view: bytes) -> None:
        self._data = data
        self._view = view
        self._redrawn = b"\r" in view
        self._ends = segment_ends(view, self._redrawn)
        self._data_ends = self._ends if data is view else segment_ends(data, self._redrawn)
        last = len(self._ends)
        self.count = last + (not last or int(self._ends[-1]) + 1 < len(view))

    @property
    def recorded(self) -> bool:
        """Whether a container runtime wrote these lines as records."""
        return _RECORD.match(self._data) is not None or self._data[:8] == b'{"log":"'

    def at(self, offsets: Sequence[int] | Numbers) -> Numbers:
        """The segments in which matches lie that end at these offsets of the view."""
        import numpy as np

        return np.searchsorted(self._ends, np.asarray(offsets, dtype=np.int64) - 1)

    def text(self, segment: int) -> bytes:
        """A segment of the view, without its end."""
        start = int(self._ends[segment - 1]) + 1 if segment else 0
        return (
            self._view[start : int(self._ends[segment])] if segment < len(self._ends) else self._view[start:]
        )

    def texts(self, segments: Numbers) -> list[bytes]:
        """The same of several segments."""
        import numpy as np

        ends = np.append(self._ends, len(self._view))
        starts = np.where(segments > 0, ends[segments - 1] + 1, 0).tolist()
        view = self._view
        return [view[start:end] for start, end in zip(starts, ends[segments].tolist(), strict=True)]

    def start(self, segment: int) -> int:
        """Where a segment begins in the view."""
        return int(self._ends[segment - 1]) + 1 if segment else 0

    def place(self, segment: int) -> tuple[int, int]:
        """Where a segment begins and ends in the source's bytes, its end not counted."""
        start = int(self._data_ends[segment - 1]) + 1 if segment else 0
        end = int(self._data_ends[segment]) if segment < len(self._data_ends) else len(self._data)
        return start, end

    def raw(self, first: int, behind: int) -> bytes:
        """The bytes of a range of segments, as they stand in the source."""
        start = int(self._data_ends[first - 1]) + 1 if first else 0
        end = int(self._data_ends[behind - 1]) + 1 if behind <= len(self._data_ends) else len(self._data)
        return self._data[start:end]

    def line_ends(self, first: int, behind: int) -> int:
        """How many line feeds a range of segments holds."""
        import numpy as np

        if not self._redrawn:
            return min(behind, len(self._ends)) - min(first, len(self._ends))
        feeds = self._feeds
        return int(np.count_nonzero(feeds[first:behind]))

    def record_head(self, segment: int) -> bytes:
        """What the record says in which a segment stands, when it is not the first of its line."""
        if not self._redrawn or not segment:
            return b""
        return record_head(self._data, int(self._data_ends[segment - 1]) + 1)

    @cached_property
    def _feeds(self) -> NDArray[np.bool_]:
        """Which segments a line feed ends."""
        import numpy as np

        return np.equal(np.frombuffer(self._view, np.uint8).take(self._ends), 10)


def record_head(data: bytes, start: int, line: int = 0) -> bytes:
    """What the record says in which a segment begins at ``start``, when it is not the first of its line.

    No line's beginning is looked for before ``line``.
    """
    if data[start - 1 : start] != b"\r" or start <= line:
        return b""
    line = max(line, data.rfind(b"\n", line, start) + 1)
    found = _RECORD.match(data, line)
    return found.group() if found and data[start : start + 1] != b"\n" else b""


def segment_ends(data: bytes, redrawn: bool) -> Numbers:
    """Where line feeds stand, and carriage returns if the data is ``redrawn``: if there are some."""
    import numpy as np

    values = np.frombuffer(data, np.uint8)
    found = []
    for start in range(0, len(values), _SLICE):
        part = values[start : start + _SLICE]
        # From a line feed to a carriage return, with what lies between, which hardly any text holds.
        ends = np.flatnonzero(part - 10 < 4 if redrawn else part == 10)
        ends += start
        found.append(ends)
    ends = np.concatenate(found) if found else np.empty(0, np.int64)
    if redrawn and (b"\x0b" in data or b"\x0c" in data):
        kinds = values[ends]
        ends = ends[(kinds == 10) | (kinds == 13)]
    return ends
