"""Read complete log lines with templates and convert the lines to entries of the table of samples."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any

from stallwatch_rules.lines.reader import MAX_LINE, LineReader
from stallwatch_rules.lines.stamps import time_of_line
from stallwatch_rules.samples import extract
from stallwatch_rules.samples.table import FIELDS, Entry, as_entry
from stallwatch_rules.samples.templates import Groups, Outcome, learn, stamp_time
from stallwatch_rules.text.lazy import lazy

PICTURE = lazy(rb"%\|[\x80-\xff #\d]*\|")  #: the filled part of a bar, which is ignored
EMPTY_PICTURE = b"%||"
_ANY_PICTURE = rb"%\|[^|\n]*\|"
_FRACTIONAL = lazy(rb"\[?(20\d\d-\d\d-\d\d[ T]\d\d:\d\d:\d\d[.,]\d{1,9})(?!\.?\d| ?[-+Z])")
_SOME_TIME = 1.7e9
_NOTHING: Outcome = dict.fromkeys(("rank", "time", "step", "total_steps"))
_MISSING = repeat(None)


@dataclass(frozen=True, eq=False)
class LineTemplate:
    """A template for complete lines that differ only in their digits. Templates read many lines at once."""

    #: Regular expression for the whole line, with a group for each required number.
    pattern: re.Pattern[bytes]
    groups: Groups
    constants: Outcome
    sampled: bool  #: True if the lines contain a sample
    timed: bool  #: True if the lines contain a time

    #: If this value is not ``None``, only the last of consecutive lines with the same value is read. Such
    #: lines are states of a bar in one physical line, or lines of one rank that have a time but no sample.
    fleeting: object

    def read(self, raws: Sequence[bytes]) -> list[Entry | None]:
        """Return the entry of each line.

        The entry is ``None`` for a line that contains a number in a different form.
        """
        found = list(map(self.pattern.fullmatch, raws))
        if all(found):
            return self._entries(found)
        fitting = [match for match in found if match is not None]
        entries = iter(self._entries(fitting) if fitting else ())
        return [next(entries) if match is not None else None for match in found]

    def _entries(self, found: Sequence[Any]) -> list[Entry | None]:
        columns: dict[str, Iterable[Any]] = {name: repeat(value) for name, value in self.constants.items()}
        texts = zip(*map(re.Match.groups, found), strict=True)
        for (name, conversion), column in zip(self.groups, texts, strict=True):
            columns[name] = map(conversion, column)
        ranks, times, steps, totals = [columns[name] for name in _NOTHING]
        bare = repeat(bool(self.constants.get("bare")), len(found))
        fields = zip(*[columns.get(name, _MISSING) for name in FIELDS], strict=False)
        try:
            return list(map(Entry, ranks, times, steps, totals, bare, fields))
        except ZeroDivisionError:  # zero steps per second cannot be converted to seconds per step
            if len(found) == 1:
                return [None]
            return [entry for match in found for entry in self._entries([match])]


def clock(rank: int | None) -> LineTemplate:
    """Return the template for lines that have a full timestamp but no sample."""
    pattern = re.compile(rb"(?s)(.{,48}).*")
    return LineTemplate(
        pattern, [("time", _leading_time)], {**_NOTHING, "rank": rank}, False, True, (False, rank)
    )


def learn_line(raw: bytes, rank: int | None) -> LineTemplate | None:
    """Learn a template from one line.

    `rank` is the rank of the line's source. Return ``None`` if no template can be learned.
    """
    raw = PICTURE.sub(EMPTY_PICTURE, raw)
    if len(raw) > MAX_LINE or _outcome(raw, rank) != _outcome(raw, rank, _SOME_TIME):
        return None  # the time of the line depends on neighboring lines
    template = learn(raw, lambda line: _outcome(line, rank))
    if template is None:
        return None
    variable = {name for name, _ in template.groups}
    constants = {name: value for name, value in template.example.items() if name not in variable}
    sampled = "bare" in constants
    timed = "time" in variable or constants["time"] is not None
    fleeting = not timed and constants["bare"] if sampled else timed and "rank" in constants
    alike = (sampled, constants.get("rank")) if fleeting else None
    pattern = template.pattern.replace(re.escape(EMPTY_PICTURE), _ANY_PICTURE)
    return LineTemplate(re.compile(pattern), template.groups, constants, sampled, timed, alike)


def _outcome(raw: bytes, rank: int | None, near: float | None = None) -> Outcome | None:
    """Return the values that are read from a single line, or ``None`` if the reader splits the line."""
    reader = LineReader("", rank).alone(near)
    lines = reader.feed(raw + b"\n") + reader.finish()
    if len(lines) != 1:
        return None if lines else {**_NOTHING, "rank": rank}
    line, entry = lines[0], as_entry(extract(lines[0]))
    outcome: Outcome = {**_NOTHING, "rank": line.rank, "time": line.time}
    if entry is not None:
        outcome |= {"bare": entry.bare, "step": entry.step, "total_steps": entry.total_steps}
        outcome |= {
            name: value for name, value in zip(FIELDS, entry.fields, strict=True) if value is not None
        }
    return outcome


def _leading_time(text: bytes) -> float | None:
    """Return the time at the start of a line. Timestamps that end with a fraction are processed faster."""
    found = _FRACTIONAL.match(text)
    return stamp_time(found[1]) if found else time_of_line(text.decode("utf-8", "replace"))
