"""Read all samples of a log. The result is the same as with ``RowReader``, but reading is much faster.

A log has many lines but few templates. Without its digits, a line usually equals an earlier line. The earlier
line then shows that the line contains no sample, or shows which template can read the line. All other lines
are read one at a time.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count

from stallwatch_rules.hints import may_hold
from stallwatch_rules.lines.reader import LineReader
from stallwatch_rules.lines.stamps import TIME_KEYS
from stallwatch_rules.samples.line_templates import EMPTY_PICTURE, PICTURE, LineTemplate, clock, learn_line
from stallwatch_rules.samples.table import RowReader
from stallwatch_rules.samples.templates import DIGITS
from stallwatch_rules.text.lazy import lazy

# Each line from which `extract` can read values contains at least one of these words. For the comparison,
# the line is in lowercase and has no digits.
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
    *("\u6b65".encode(), "\u6b65".encode("gbk")),
)
# A time without its digits. The only letter that can precede the hours is "T".
_STAMP = lazy(rb"(?:^|[^A-SU-Za-z_])::")
# The key of a Unix time without its digits, in lowercase.
_TIME_KEY = lazy(rb"[{,]\s?['\"](?:" + "|".join(TIME_KEYS).encode() + rb")['\"]\s?: ?['\"]?\.?[,}'\"]")
# Lines without a rank that begin with a full timestamp have the rank of their source and the time of this
# timestamp. Journal entries are excluded, because their text can contain another timestamp.
_CLOCK = lazy(rb"\[?--(?: |T(?!.*\]: ))::(?!.*(?:ank|ANK|\[default|\]<std|\[trainer|\[worker))")
_BEHIND_BAR = lazy(rb"(?<=it\]|/s\])(?=[!-~])(?=[^\]),])")  # text directly after the end of a bar
_WORTH_LEARNING = 6  # number of similar lines that are read before a template is learned
_MOST_TEMPLATES = 20_000
_MOST_KEYS = 100_000
_LONGEST_KEY = 1000  # maximum number of bytes in a stored key


@dataclass
class _Kind:
    """A group of lines that differ only in their digits and in the filled part of a bar."""

    seen: int = 0
    template: LineTemplate | None = None


# ``_NOTHING``: lines that have neither a sample nor a time. ``_INTERLEAVED``: several lines that were joined
# into one line.
_NOTHING, _INTERLEAVED = _Kind(), _Kind()


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
    """A reader of one source that processes blocks of complete lines with ``LineReader.ordinary``."""

    def __init__(self, reader: LineReader, rows: RowReader) -> None:
        self._reader = reader
        self._rows = rows
        # The lines of the current block, with their line numbers and templates.
        self._waiting: list[tuple[int, bytes, LineTemplate | None]] = []
        self._keys: dict[bytes, _Kind] = {}
        self._kinds: dict[bytes, _Kind] = {}
        self._clock = _Kind(_WORTH_LEARNING, clock(reader.rank))

    @_uncollected()
    def read(self, data: bytes) -> None:
        """Read a block of complete lines and add rows for the samples in these lines to the table."""
        # Null bytes and backspaces are handled in the same way as in ``LineReader``.
        data = data.replace(b"\0", b"").replace(b"\b", b"\r")
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
                kind = _Kind()  # the end of the bar contains a number, so the line is read separately
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
            if entry is None:  # no template can read the line, so it is read separately
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
            has_clock = b"::" in key and _STAMP.search(key) is not None
            if not has_clock and not (b"{" in key and _TIME_KEY.search(key)):
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
