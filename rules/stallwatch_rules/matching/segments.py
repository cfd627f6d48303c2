"""Where the segments of a cell begin and end: what a line feed or a carriage return ends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from stallwatch_rules.text.lazy import lazy

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Numbers = NDArray[np.int64]

# A container runtime's record: only its line's first segment has the head.
_RECORD = lazy(rb"\d{4}-\d\d-\d\dT[\d:.]+(?:Z|[+-]\d\d:\d\d) (?:stdout|stderr) [FP](?::\w+)? ")


_SLICE = 64 * 1024  # bytes that a processor's cache holds together with what is made of them


_FEW = 64  # offsets that are sooner looked up one by one


class LineEnds:
    """Where line feeds, and carriage returns if there are some, stand in a block: the n-th of all of them.

    They are only counted, slice by slice, and what else is asked of every byte is asked while the slice lies
    in a processor's cache. Where they stand is looked up in the slices that somebody asks for: mostly a few.
    """

    def __init__(self, data: bytes) -> None:
        import numpy as np

        self._values = values = np.frombuffer(data, np.uint8)
        self.redrawn = b"\r" in data  #: whether there are carriage returns
        feeds, returns, solid = [0], [0], True
        for start in range(0, len(data), _SLICE):
            part = values[start : start + _SLICE]
            feeds.append(int(np.count_nonzero(part == 10)))
            returns.append(int(np.count_nonzero(part == 13)) if self.redrawn else 0)
            # Signed, all but ASCII is below 1.
            solid = solid and part.view(np.int8).min() > 0 and data.find(b"\x1b", start, start + _SLICE) < 0
        self.solid = bool(solid)  #: whether the block is ASCII without NULs and escapes
        self._feeds_before = np.cumsum(feeds)
        self._before = self._feeds_before + np.cumsum(returns)  # ends before each slice
        self._found: dict[int, Numbers] = {}
        self._feeds_in: dict[int, Numbers] = {}  # how many of a slice's ends up to each are line feeds
        self.count = int(self._before[-1])

    def at(self, number: int) -> int:
        """Where the end with this number stands."""
        order = int(self._before.searchsorted(number, "right")) - 1
        return int(self._in(order)[number - self._before[order]])

    def at_all(self, numbers: Numbers) -> Numbers:
        """The same of several."""
        import numpy as np

        places = np.empty(len(numbers), np.int64)
        orders = self._before.searchsorted(numbers, "right") - 1
        for order in np.unique(orders).tolist():
            here = orders == order
            places[here] = self._in(order)[numbers[here] - self._before[order]]
        return places

    def before(self, offsets: Numbers) -> Numbers:
        """How many ends stand before each of these offsets."""
        import numpy as np

        if len(offsets) <= _FEW:
            found = [
                self._before[at // _SLICE] + self._in(at // _SLICE).searchsorted(at)
                for at in offsets.tolist()
            ]
            return np.array(found, np.int64)
        numbers = np.empty(len(offsets), np.int64)
        orders = offsets // _SLICE
        for order in np.unique(orders).tolist():
            here = orders == order
            numbers[here] = self._in(order).searchsorted(offsets[here]) + self._before[order]
        return numbers

    def feeds(self, number: int) -> int:
        """How many of the first so many are line feeds."""
        import numpy as np

        if not self.redrawn or number >= self.count:
            return min(number, self.count) if not self.redrawn else int(self._feeds_before[-1])
        order = int(self._before.searchsorted(number, "right")) - 1
        feeds = self._feeds_in.get(order)
        if feeds is None:
            feeds = self._feeds_in[order] = np.cumsum(self._values[self._in(order)] == 10)
        inside = number - int(self._before[order])
        return int(self._feeds_before[order]) + (int(feeds[inside - 1]) if inside else 0)

    def _in(self, order: int) -> Numbers:
        """Where they stand in a slice."""
        import numpy as np

        found = self._found.get(order)
        if found is None:
            start = order * _SLICE
            part = self._values[start : start + _SLICE]
            found = np.flatnonzero((part == 10) | (part == 13) if self.redrawn else part == 10)
            found += start
            self._found[order] = found
        return found


class Segments:
    """The segments of a cell's ``data`` and of its ``view``, which has as many."""

    def __init__(self, data: bytes, view: bytes, ends: LineEnds | None = None) -> None:
        """``ends`` are those of ``data``, where they are known."""
        self._data = data
        self._view = view
        self._data_ends = ends if ends is not None else LineEnds(data)
        self._ends = self._data_ends if data is view else LineEnds(view)
        self._redrawn = self._ends.redrawn
        self.count = self._ends.count + (not view or view[-1:] not in (b"\n", b"\r"))

    @property
    def recorded(self) -> bool:
        """Whether a container runtime wrote these lines as records."""
        return _RECORD.match(self._data) is not None or self._data[:8] == b'{"log":"'

    def at(self, offsets: Sequence[int] | Numbers) -> Numbers:
        """The segments in which matches lie that end at these offsets of the view."""
        import numpy as np

        # A match that ends at the very start, as an empty one may, lies in the first.
        return self._ends.before(np.maximum(np.asarray(offsets, dtype=np.int64) - 1, 0))

    def text(self, segment: int) -> bytes:
        """A segment of the view, without its end."""
        start = self.start(segment)
        return (
            self._view[start : self._ends.at(segment)] if segment < self._ends.count else self._view[start:]
        )

    def texts(self, segments: Numbers) -> list[bytes]:
        """The same of several segments."""
        import numpy as np

        ends = np.full(len(segments), len(self._view))
        ended = segments < self._ends.count
        ends[ended] = self._ends.at_all(segments[ended])
        starts = np.zeros(len(segments), np.int64)
        later = segments > 0
        starts[later] = self._ends.at_all(segments[later] - 1) + 1
        view = self._view
        return [view[start:end] for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]

    def start(self, segment: int) -> int:
        """Where a segment begins in the view."""
        return self._ends.at(segment - 1) + 1 if segment else 0

    def place(self, segment: int) -> tuple[int, int]:
        """Where a segment begins and ends in the source's bytes, its end not counted."""
        ends = self._data_ends
        start = ends.at(segment - 1) + 1 if segment else 0
        return start, ends.at(segment) if segment < ends.count else len(self._data)

    def raw(self, first: int, behind: int) -> bytes:
        """The bytes of a range of segments, as they stand in the source."""
        ends = self._data_ends
        start = ends.at(first - 1) + 1 if first else 0
        return self._data[start : ends.at(behind - 1) + 1 if behind <= ends.count else len(self._data)]

    def line_ends(self, first: int, behind: int) -> int:
        """How many line feeds a range of segments holds."""
        return self._ends.feeds(behind) - self._ends.feeds(first)

    def record_head(self, segment: int) -> bytes:
        """What the record says in which a segment stands, when it is not the first of its line."""
        if not self._redrawn or not segment:
            return b""
        return record_head(self._data, self._data_ends.at(segment - 1) + 1)


def record_head(data: bytes | bytearray, start: int, line: int = 0) -> bytes:
    """What the record says in which a segment begins at ``start``, when it is not the first of its line.

    No line's beginning is looked for before ``line``.
    """
    if data[start - 1 : start] != b"\r" or start <= line:
        return b""
    line = max(line, data.rfind(b"\n", line, start) + 1)
    found = _RECORD.match(data, line)
    return bytes(found.group()) if found and data[start : start + 1] != b"\n" else b""


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
