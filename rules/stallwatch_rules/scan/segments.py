"""A chunk's bytes as patterns see them, and where its segments end: at line feeds and carriage returns.

The view of a chunk is its text in UTF-8, without colours, container escapes and foreign encodings. Whatever
is taken out, every line feed and carriage return stays, so that the n-th segment of the view is the n-th of
the chunk.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from stallwatch_rules.lines.containers import TEXTS
from stallwatch_rules.lines.unescape import TYPESET
from stallwatch_rules.text.controls import TERMINAL_CODES_IN_BYTES
from stallwatch_rules.text.encodings import decode_foreign
from stallwatch_rules.text.lazy import lazy

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Numbers = NDArray[np.int64]

# What docker's json-file driver writes, and collectors whose first record has its text in sight.
_JSON_LINES = lazy(rb'\s*\{"(?:log":"|[^\n]{0,400}?"(?:%s)": ?")' % "|".join(TEXTS).encode())
_JSON_ESCAPES = (
    (b'\\"', b'"'),
    (b"\\u003c", b"<"),
    (b"\\u003e", b">"),
    (b"\\u0026", b"&"),
    (b"\\t", b"\t"),
    (b"\\u001b", b"\x1b"),
    (b"\\\\", b"\\"),
)
# What a page sets for quotes and blanks, as the reader of lines spells it (``lines.unescape``).
_TYPESET = tuple((character.encode(), plain.encode()) for character, plain in TYPESET.items())
_TYPESET_BEGINS = (b"\xe2\x80", b"\xc2\xa0", b"\xe3\x80\x80")
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
    """The segments of a chunk's bytes, and of its ``view``, which has as many."""

    def __init__(self, data: bytes) -> None:
        ends = LineEnds(data)
        if not ends.solid and b"\0" in data:
            data = data.replace(b"\0", b"")
            ends = LineEnds(data)
        self.data = data
        self.view = view = view_of(data, solid=ends.solid)
        self._data_ends = ends
        self._ends = ends if data is view else LineEnds(view)
        self.count = self._ends.count + (not view or view[-1:] not in (b"\n", b"\r"))

    @property
    def recorded(self) -> bool:
        """Whether a container runtime wrote these lines as records."""
        return _RECORD.match(self.data) is not None or self.data[:8] == b'{"log":"'

    def at(self, offsets: Sequence[int] | Numbers) -> Numbers:
        """The segments in which matches lie that end at these offsets of the view."""
        import numpy as np

        # A match that ends at the very start, as an empty one may, lies in the first.
        return self._ends.before(np.maximum(np.asarray(offsets, dtype=np.int64) - 1, 0))

    def start(self, segment: int) -> int:
        """Where a segment begins in the view."""
        return self._ends.at(segment - 1) + 1 if segment else 0

    def text(self, segment: int) -> bytes:
        """A segment of the view, without its end."""
        end = self._ends.at(segment) if segment < self._ends.count else None
        return self.view[self.start(segment) : end]

    def texts(self, segments: Numbers) -> list[bytes]:
        """The same of several segments."""
        import numpy as np

        ends = np.full(len(segments), len(self.view))
        ended = segments < self._ends.count
        ends[ended] = self._ends.at_all(segments[ended])
        starts = np.zeros(len(segments), np.int64)
        later = segments > 0
        starts[later] = self._ends.at_all(segments[later] - 1) + 1
        view = self.view
        return [view[start:end] for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]

    def raw(self, first: int, behind: int) -> bytes:
        """The bytes of a range of segments, as they stand in the source."""
        ends = self._data_ends
        end = ends.at(behind - 1) + 1 if behind <= ends.count else None
        return self.data[self._raw_start(first) : end]

    def place(self, segment: int) -> tuple[int, int]:
        """Where a segment begins and ends in ``data``, its end not counted."""
        ends = self._data_ends
        return self._raw_start(segment), ends.at(segment) if segment < ends.count else len(self.data)

    def line_ends(self, first: int, behind: int) -> int:
        """How many line feeds a range of segments holds."""
        return self._ends.feeds(behind) - self._ends.feeds(first)

    def record_head(self, segment: int) -> bytes:
        """What the record says in which a segment stands, when it is not the first of its line."""
        return record_head(self.data, self._raw_start(segment)) if self._ends.redrawn and segment else b""

    def _raw_start(self, segment: int) -> int:
        return self._data_ends.at(segment - 1) + 1 if segment else 0


def record_head(data: bytes, start: int) -> bytes:
    """What the record says in which a segment begins at ``start``, when it is not the first of its line."""
    if data[start - 1 : start] != b"\r" or data[start : start + 1] == b"\n":
        return b""
    found = _RECORD.match(data, data.rfind(b"\n", 0, start) + 1)
    return found.group() if found else b""


def is_solid(data: bytes) -> bool:
    """Whether the bytes are ASCII without NULs and escapes: signed, all but ASCII is below 1."""
    import numpy as np

    return not data or (int(np.frombuffer(data, np.int8).min()) > 0 and b"\x1b" not in data)


def view_of(data: bytes, *, solid: bool = False) -> bytes:
    """The chunk's text in UTF-8, in which patterns are found that its lines match.

    ``solid``: it is known to be ASCII without escape characters; JSON may still spell some out.
    """
    if not solid and not data.isascii():
        data = _utf8(data)
        if any(begun in data for begun in _TYPESET_BEGINS):
            for character, plain in _TYPESET:
                data = data.replace(character, plain)
    if data[:1] in (b"{", b" ") and _JSON_LINES.match(data):
        for escape, character in _JSON_ESCAPES:
            data = data.replace(escape, character)
        solid = False  # an escape may stand there now
    if not solid and b"\x1b" in data:
        data = TERMINAL_CODES_IN_BYTES.sub(b"", data)
    return data


def _utf8(data: bytes) -> bytes:
    try:
        data.decode()
    except UnicodeDecodeError:
        return b"\n".join([_line(line) for line in data.split(b"\n")])
    return data


def _line(line: bytes) -> bytes:
    if line.isascii():
        return line
    return b"\r".join([_segment(segment) for segment in line.split(b"\r")])


def _segment(raw: bytes) -> bytes:
    """Decoded as the reader of lines does it."""
    try:
        raw.decode()
    except UnicodeDecodeError:
        return decode_foreign(raw).encode()
    return raw
