"""Read all samples of a log much faster than ``RowReader``, but into the same rows.

A log has many lines and few templates. Without its digits, a line usually equals an earlier line, which shows
that the line contains no sample, or which template reads the line. Other lines are read one at a time.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count

from stallwatch_rules.hints import may_hold
from stallwatch_rules.lines.reader import LineReader
from stallwatch_rules.samples.line_templates import EMPTY_PICTURE, PICTURE, LineTemplate, clock, learn_line
from stallwatch_rules.samples.table import RowReader
from stallwatch_rules.samples.templates import DIGITS
from stallwatch_rules.text.lazy import lazy

# Words, without digits and in lower case, of which each line from which `extract` reads numbers contains one.
_WORDS = (
    *b"step iter loss num_upd overflow train_runtime memalloc amples/sec:".split(),
    *(
        b"/ [",
        b"it [",
        b"max_ma ",
        b"memory (mb) |",
        b"average reward",
        b"progress on:",
        b"s: trl:",
        b"s: tel:",
    ),
    *("\u2501".encode(), "\u635f\u5931".encode(), "\u635f\u5931".encode("gbk")),
)
_STAMP = lazy(rb"(?:^|[^A-SU-Za-z_])::")  # a time; the only possible letter before the hours is "T"
# Lines without a rank that begin with a full timestamp show the time of their source. The text of a journal
# entry can contain another timestamp.
_CLOCK = lazy(rb"\[?--(?: |T(?!.*\]: ))::(?!.*(?:ank|ANK|\[default|\]<std|\[trainer|\[worker))")
_BEHIND_BAR = lazy(rb"(?<=it\]|/s\])(?=[!-~])(?=[^\]),])")  # text follows the end of a bar
_WORTH_LEARNING = 6  # number of lines of a kind before a template is learned
_MOST_TEMPLATES = 20_000
_MOST_KEYS = 100_000
_LONGEST_KEY = 1000  # maximum number of bytes of a key


@dataclass
class _Kind:
    """A kind of lines, which differ only in their digits and in the filled part of a bar."""

    seen: int = 0
    template: LineTemplate | None = None


_NOTHING, _INTERLEAVED = _Kind(), _Kind()  # lines without sample and time; several lines in one


@contextmanager
def _uncollected() -> Iterator[None]:
    """Disable the garbage collector for a block that creates many objects but no reference cycles."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class BulkReader:
    """Reader of one source in blocks of complete lines. It uses ``LineReader.ordinary`` for each block."""

    def __init__(self, reader: LineReader, rows: RowReader) -> None:
        self._reader = reader
        self._rows = rows
        # The lines of the current block, with their numbers.
        self._waiting: list[tuple[int, bytes, LineTemplate | None]] = []
        self._keys: dict[bytes, _Kind] = {}
        self._kinds: dict[bytes, _Kind] = {}
        self._clock = _Kind(_WORTH_LEARNING, clock(reader.rank))

    @_uncollected()
    def read(self, data: bytes) -> None:
        """Read a block of complete lines and add the rows of its samples to the table."""
        data = data.replace(b"\0", b"").replace(b"\b", b"\r")  # nulls and backspaces, as in the line reader
        lines, keys = data.split(b"\n"), data.translate(None, DIGITS).split(b"\n")
        lines.pop()
        known = self._keys.get
        first = self._reader.number
        for number, line, key, kind in zip(count(first), lines, keys, map(known, keys)):
            if kind is _NOTHING:
                continue
            if kind is None and b"\r" in key:
                parts = key.split(b"\r")
                for part, part_key, part_kind in zip(
                    line.split(b"\r"), parts, map(known, parts), strict=True
                ):
                    if part_kind is not _NOTHING:
                        self._segment(number, part, part_key, part_kind)
            else:
                self._segment(number, line, key, kind)
        self._read_waiting()
        self._reader.number = first + len(lines)

    def _segment(self, number: int, raw: bytes, key: bytes, kind: _Kind | None) -> None:
        template = kind.template if kind is not None else None
        if template is None:
            if kind is None:
                kind = self._kind(key)
            if kind is _NOTHING:
                return
            if kind is _INTERLEAVED:
                parts = _BEHIND_BAR.split(raw)
                for part in parts if len(parts) > 1 else ():
                    part_key = part.translate(None, DIGITS)
                    self._segment(number, part, part_key, self._keys.get(part_key))
                if len(parts) > 1:
                    return
                kind = _Kind()  # the bar's end contains a number, so the line is read separately
            template = kind.template or self._learnt(kind, raw, key)
        if template is not None and template.fleeting is not None and self._waiting:
            before, _, other = self._waiting[-1]
            same = other is not None and other.fleeting == template.fleeting
            if same and (before == number or not template.sampled):
                self._waiting.pop()
        self._waiting.append((number, raw, template))

    def _learnt(self, kind: _Kind, raw: bytes, key: bytes) -> LineTemplate | None:
        kind.seen += 1
        if kind.seen == _WORTH_LEARNING:
            kind.template = learn_line(raw, self._reader.rank)
            if kind.template is not None and not (kind.template.sampled or kind.template.timed):
                self._keys[key] = _NOTHING
        return kind.template

    def _read_waiting(self) -> None:
        raws: dict[LineTemplate, list[bytes]] = {}
        for _, raw, template in self._waiting:
            if template is not None:
                raws.setdefault(template, []).append(raw)
        entries = {template: iter(template.read(lines)) for template, lines in raws.items()}
        reader, rows = self._reader, self._rows
        for number, raw, template in self._waiting:
            entry = next(entries[template]) if template is not None else None
            if entry is None:  # the line is read separately
                reader.number = number
                rows.feed(reader.feed(raw + b"\n"))
            else:
                entry.time = reader.carried(entry.rank, entry.time)
                if template is not None and template.sampled:
                    rows.take(number, entry)
        self._waiting.clear()

    def _kind(self, key: bytes) -> _Kind:
        if len(self._keys) >= _MOST_KEYS or len(self._kinds) >= _MOST_TEMPLATES:
            self._keys.clear()
            self._kinds.clear()
        kind, lower = None, key.lower()
        if not may_hold(lower, _WORDS):
            if b"::" not in key or _STAMP.search(key) is None:
                kind = _NOTHING
            elif _CLOCK.match(key) is not None:
                kind = self._clock
        elif _BEHIND_BAR.search(key) is not None:
            kind = _INTERLEAVED
        if kind is None:
            kind = self._kinds.setdefault(PICTURE.sub(EMPTY_PICTURE, key), _Kind())
        if len(key) <= _LONGEST_KEY:
            self._keys[key] = kind
        return kind
