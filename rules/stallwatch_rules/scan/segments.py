"""Prepare the bytes of a chunk for a pattern search, and find the ends of segments.

A segment ends with a line feed or a carriage return. The view of a chunk is its text in UTF-8, without
colors, container escapes, and foreign encodings. The view contains all line feeds and carriage returns.
Therefore, the n-th segment of the view is the n-th segment of the chunk.
"""

from __future__ import annotations

import itertools
import operator
from bisect import bisect_left, bisect_right
from collections.abc import Sequence

from stallwatch_rules.lines.containers import TEXTS
from stallwatch_rules.lines.unescape import TYPESET
from stallwatch_rules.text.controls import TERMINAL_CODES_IN_BYTES
from stallwatch_rules.text.encodings import decode_foreign
from stallwatch_rules.text.lazy import lazy

# Records of the Docker json-file driver, and of collectors whose first record has its text near the start.
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
# Typographic quotes and spaces from web pages. They are replaced in the same way as in the line reader
# (``lines.unescape``).
_TYPESET = tuple((character.encode(), plain.encode()) for character, plain in TYPESET.items())
_TYPESET_BEGINS = (b"\xe2\x80", b"\xc2\xa0", b"\xe3\x80\x80")
# The head of a record that a container runtime wrote. Only the first segment of a line has this head.
_RECORD = lazy(rb"\d{4}-\d\d-\d\dT[\d:.]+(?:Z|[+-]\d\d:\d\d) (?:stdout|stderr) [FP](?::\w+)? ")
_FEED, _ENDS = lazy(rb"\n"), lazy(rb"[\r\n]")
_SLICE = 64 * 1024  # number of bytes that fit into the cache of the processor together with the results
_SHORT = 8 * 1024  # maximum number of bytes for which Python counts faster than numpy
_PAYS = 32 * 1024 * 1024
_counted = 0


def _count(data: bytes, value: bytes, start: int, end: int) -> int:
    """Count the occurrences of a byte value between two offsets.

    numpy counts seven times as fast as Python. However, loading numpy takes as long as counting ``_PAYS``
    bytes in Python.
    """
    global _counted  # number of bytes that were counted in this process
    _counted += end - start
    if end - start < _SHORT or _counted < _PAYS:
        return data.count(value, start, end)
    import numpy as np

    return int(np.count_nonzero(np.frombuffer(data, np.uint8, end - start, start) == value[0]))


def _ends_in(data: bytes, start: int, *, redrawn: bool) -> list[int]:
    """Return the positions of the line feeds in a slice. If `redrawn` is true, include carriage returns."""
    if _counted < _PAYS:
        form = _ENDS if redrawn else _FEED
        return [end.start() for end in form.finditer(data, start, start + _SLICE)]
    import numpy as np

    part = np.frombuffer(data, np.uint8, min(_SLICE, len(data) - start), start)
    found = np.flatnonzero((part == 10) | (part == 13) if redrawn else part == 10)
    places: list[int] = (found + start).tolist()
    return places


class LineEnds:
    """The positions of all line feeds and carriage returns in a block. These bytes are called ends.

    The ends in all slices of the block are counted. The positions of the ends are computed only for slices
    that are queried. Usually, only a few slices are queried.
    """

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.redrawn = b"\r" in data  #: True if the block contains carriage returns
        self._feeds_before = self._counted(b"\n")
        self._before = self._feeds_before  # number of ends before each slice, and in the whole block
        if self.redrawn:
            self._before = list(map(operator.add, self._feeds_before, self._counted(b"\r")))
        self._found: dict[int, list[int]] = {}
        self.count = self._before[-1]

    def _counted(self, value: bytes) -> list[int]:
        """Return how often a byte occurs before each slice. The last number is for the whole block."""
        size = len(self._data)
        slices = range(0, size, _SLICE)
        counts = (_count(self._data, value, start, min(start + _SLICE, size)) for start in slices)
        return list(itertools.accumulate(counts, initial=0))

    def at(self, number: int) -> int:
        """Return the position of the end with this index."""
        order = bisect_right(self._before, number) - 1
        return self._in(order)[number - self._before[order]]

    def before(self, offset: int) -> int:
        """Return the number of ends before an offset."""
        order = offset // _SLICE
        return self._before[order] + (bisect_left(self._in(order), offset) if offset % _SLICE else 0)

    def feeds(self, number: int) -> int:
        """Return the number of line feeds among the first `number` ends."""
        if not self.redrawn:
            return min(number, self.count)
        if number >= self.count:
            return self._feeds_before[-1]
        order = bisect_right(self._before, number) - 1
        start = order * _SLICE
        return self._feeds_before[order] + self._data.count(b"\n", start, self.at(number))

    def _in(self, order: int) -> list[int]:
        """Return the positions of the ends in the slice with this index."""
        found = self._found.get(order)
        if found is None:
            found = self._found[order] = _ends_in(self._data, order * _SLICE, redrawn=self.redrawn)
        return found


class Segments:
    """The segments of a chunk, in its bytes and in its ``view``. Both contain the same number of segments."""

    def __init__(self, data: bytes) -> None:
        solid = data.isascii() and b"\0" not in data and b"\x1b" not in data
        if not solid:
            data = data.replace(b"\0", b"")
        self.data = data
        self.view = view = view_of(data, solid=solid)
        self._data_ends = LineEnds(data)
        self._ends = self._data_ends if data is view else LineEnds(view)
        self.count = self._ends.count + (not view or view[-1:] not in (b"\n", b"\r"))

    @property
    def recorded(self) -> bool:
        """True if the lines are records of a container runtime, such as Docker or containerd."""
        return _RECORD.match(self.data) is not None or self.data[:8] == b'{"log":"'

    def at(self, offsets: Sequence[int]) -> list[int]:
        """Return the segment of each match.

        The offsets are the positions in the view at which the matches end.

        The function is fastest for ascending offsets, because most matches are in the same segment as the
        previous match.
        """
        units: list[int] = []
        unit, start, end = 0, 1, 0  # segment of the last offset, and the range of offsets in this segment
        for offset in offsets:
            if not start <= offset <= end:
                # A match that ends at offset 0 is empty and is in the first segment.
                unit = self._ends.before(max(offset - 1, 0))
                start = self.start(unit) + 1
                end = self._ends.at(unit) + 1 if unit < self._ends.count else len(self.view)
            units.append(unit)
        return units

    def start(self, segment: int) -> int:
        """Return the offset at which a segment begins in the view."""
        return self._ends.at(segment - 1) + 1 if segment else 0

    def text(self, segment: int) -> bytes:
        """Return the text of a segment in the view, without its line end."""
        end = self._ends.at(segment) if segment < self._ends.count else None
        return self.view[self.start(segment) : end]

    def raw(self, first: int, behind: int) -> bytes:
        """Return the bytes of a range of segments, as in the source."""
        ends = self._data_ends
        end = ends.at(behind - 1) + 1 if behind <= ends.count else None
        return self.data[self._raw_start(first) : end]

    def place(self, segment: int) -> tuple[int, int]:
        """Return the offsets in ``data`` at which a segment begins and ends. The line end is not included."""
        ends = self._data_ends
        return self._raw_start(segment), ends.at(segment) if segment < ends.count else len(self.data)

    def line_ends(self, first: int, behind: int) -> int:
        """Return the number of line feeds in a range of segments."""
        return self._ends.feeds(behind) - self._ends.feeds(first)

    def record_head(self, segment: int) -> bytes:
        """Return the head of the container record that contains a segment.

        For the first segment of a line, return empty bytes, because the segment itself contains the head.
        """
        if not segment or not self._ends.redrawn:
            return b""
        data, start = self.data, self._raw_start(segment)
        if data[start - 1 : start] != b"\r" or data[start : start + 1] == b"\n":
            return b""
        found = _RECORD.match(data, data.rfind(b"\n", 0, start) + 1)
        return found.group() if found else b""

    def _raw_start(self, segment: int) -> int:
        return self._data_ends.at(segment - 1) + 1 if segment else 0


def view_of(data: bytes, *, solid: bool = False) -> bytes:
    """Convert a chunk to UTF-8 text in the form that the patterns of rules expect.

    If `solid` is true, the data is ASCII without escape characters. JSON strings can still contain escapes.
    """
    if not solid and not data.isascii():
        data = _utf8(data)
        if any(begun in data for begun in _TYPESET_BEGINS):
            for character, plain in _TYPESET:
                data = data.replace(character, plain)
    if data[:1] in (b"{", b" ") and _JSON_LINES.match(data):
        for escape, character in _JSON_ESCAPES:
            data = data.replace(escape, character)
        solid = False  # after the replacement, the text can contain escape characters
    if not solid and b"\x1b" in data:
        data = TERMINAL_CODES_IN_BYTES.sub(b"", data)
    return data


def _utf8(data: bytes) -> bytes:
    """Convert the segments that are not UTF-8, in the same way as the line reader."""
    try:
        data.decode()
    except UnicodeDecodeError:
        # Each segment is decoded only once. The line that contains the segment is not decoded first, because
        # a failed attempt to decode a line is slow.
        return b"\n".join([line if line.isascii() else _line(line) for line in data.split(b"\n")])
    return data


def _line(line: bytes) -> bytes:
    return b"\r".join([_segment(segment) for segment in line.split(b"\r")])


def _segment(raw: bytes) -> bytes:
    try:
        raw.decode()
    except UnicodeDecodeError:
        return decode_foreign(raw).encode()
    return raw
