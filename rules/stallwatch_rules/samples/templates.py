"""Read lines that differ only in their digits by templates: the mapping of numbers to values is learned once.

A template is learned from one line by changing its numbers one at a time and reading the line again. Each
value must be one number times a factor; lines with other values have no template and are read one by one.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import repeat
from typing import Any

from stallwatch_rules.lines.reader import MAX_LINE, LineReader
from stallwatch_rules.lines.stamps import time_of_line
from stallwatch_rules.samples import extract
from stallwatch_rules.samples.fields import GIB, MIB
from stallwatch_rules.samples.table import FIELDS, Entry, as_entry
from stallwatch_rules.text.lazy import lazy

PICTURE = lazy(rb"%\|[\x80-\xff #\d]*\|")  #: the drawing of a bar, which does not matter
EMPTY_PICTURE = b"%||"
_ANY_PICTURE = rb"%\|[^|\n]*\|"
_TOKEN = lazy(rb"\d{1,3}(?:,\d{3})+(?:\.\d+)?(?![\d,])|\d+(?:\.\d*)?(?:[eE][-+]?\d+)?|\.\d+(?:[eE][-+]?\d+)?")
_FRACTIONAL = lazy(rb"\[?(20\d\d-\d\d-\d\d[ T]\d\d:\d\d:\d\d[.,]\d{1,9})(?!\.?\d| ?[-+Z])")
_DIGITS = lazy(rb"\d+")
_AT_ONCE = b"+" if sys.version_info >= (3, 11) else b""  # possessive quantifier: no backtracking
_RUN = rb"\d{1,15}" + _AT_ONCE  # longer numbers are not counts
_INVERSE = 0.0  # factor that marks a value as the inverse of the number
_FACTORS = (_INVERSE, 1.0, -1.0, 1e-3, GIB, MIB)
_COUNTS = ("rank", "step", "total_steps")
_MOST_TOKENS = 60
_SOME_TIME = 1.7e9

_Outcome = dict[str, float | None]  # values read from a line: rank, time, and the sample's values by name
_NOTHING: _Outcome = dict.fromkeys(("rank", "time", "step", "total_steps"))
_MISSING = repeat(None)
_Tokens = Sequence[re.Match[bytes]]


@dataclass(frozen=True, eq=False)
class Template:
    """The rule by which to read lines that differ only in their digits."""

    pattern: re.Pattern[bytes]  #: expression for the whole line, with a group for each needed number
    groups: list[tuple[str, Callable[[bytes], float | None]]]  #: name and conversion of each group
    constants: _Outcome
    sampled: bool  #: True if the lines contain a sample
    timed: bool  #: True if the lines have their own time
    #: if not ``None``: of consecutive lines with an equal value, only the last counts (the drawings of a bar
    #: in one line, the times of a rank)
    fleeting: object

    def read(self, raws: Sequence[bytes]) -> list[Entry | None]:
        """Read lines, each by itself; ``None`` for a line with a number in an unknown form."""
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


def clock(rank: int | None) -> Template:
    """Return the template of all lines of a source with a full timestamp and without a sample."""
    pattern = re.compile(rb"(?s)(.{,48}).*")
    return Template(
        pattern, [("time", _leading_time)], {**_NOTHING, "rank": rank}, False, True, (False, rank)
    )


def learn(raw: bytes, rank: int | None) -> Template | None:
    """Learn a template from one of its lines, in a source of this rank; ``None`` if there is none."""
    raw = PICTURE.sub(EMPTY_PICTURE, raw)
    tokens = list(_TOKEN.finditer(raw))
    base = _outcome(raw, rank) if len(tokens) <= _MOST_TOKENS and len(raw) <= MAX_LINE else None
    if base is None or base != _outcome(raw, rank, _SOME_TIME):  # the time depends on neighboring lines
        return None
    changed: list[_Outcome] = []
    for token in tokens:
        other = _outcome(_changed_in(raw, token), rank)
        if other is None or other.keys() != base.keys():
            return None
        changed.append(other)
    depends = {
        name: at
        for name, value in base.items()
        if (at := [index for index, other in enumerate(changed) if not _same(value, other[name])])
    }
    stamp = depends.pop("time", [])
    if stamp and not _is_stamp(raw, tokens, stamp, base["time"], changed):
        return None
    wanted: dict[int, tuple[str, float]] = {}
    for name, (first, *more) in depends.items():
        factor = _factor(raw, tokens[first], base[name], changed[first][name])
        if more or factor is None or first in wanted or (name in _COUNTS and factor != 1.0) or name == "bare":
            return None
        wanted[first] = name, factor
    variable = {name for name, _ in wanted.values()} | ({"time"} if stamp else set())
    constants = {name: value for name, value in base.items() if name not in variable}
    return _compiled(raw, tokens, wanted, stamp, constants)


def _compiled(
    raw: bytes, tokens: _Tokens, wanted: dict[int, tuple[str, float]], stamp: list[int], constants: _Outcome
) -> Template:
    parts: list[bytes] = []
    groups: list[tuple[str, Callable[[bytes], float | None]]] = []
    at = 0
    for index, token in enumerate(tokens):
        parts.append(re.escape(raw[at : token.start()]))
        shape = _shape_of(token[0])
        if stamp and index == stamp[0]:
            parts.append(b"(")
            groups.append(("time", _stamp_time))
        if index in wanted:
            name, factor = wanted[index]
            groups.append((name, _conversion(token[0], name, factor)))
            shape = b"(" + shape + b")"
        parts.append(shape)
        if stamp and index == stamp[-1]:
            parts.append(b")")
        at = token.end()
    parts.append(re.escape(raw[at:]))
    pattern = b"".join(parts).replace(re.escape(EMPTY_PICTURE), _ANY_PICTURE)
    sampled = "bare" in constants
    timed = bool(stamp) or constants["time"] is not None
    fleeting = not timed and constants["bare"] if sampled else timed and "rank" in constants
    alike = (sampled, constants.get("rank")) if fleeting else None
    return Template(re.compile(pattern), groups, constants, sampled, timed, alike)


def _outcome(raw: bytes, rank: int | None, near: float | None = None) -> _Outcome | None:
    """Read a line by itself; ``None`` if the reader splits it into several lines."""
    reader = LineReader("", rank).alone(near)
    lines = reader.feed(raw + b"\n") + reader.finish()
    if len(lines) != 1:
        return None if lines else {**_NOTHING, "rank": rank}
    line, entry = lines[0], as_entry(extract(lines[0]))
    outcome: _Outcome = {**_NOTHING, "rank": line.rank, "time": line.time}
    if entry is not None:
        outcome |= {"bare": entry.bare, "step": entry.step, "total_steps": entry.total_steps}
        outcome |= {
            name: value for name, value in zip(FIELDS, entry.fields, strict=True) if value is not None
        }
    return outcome


def _changed_in(raw: bytes, token: re.Match[bytes]) -> bytes:
    """Return the line with a different last digit in this number.

    The digit is not in the exponent, and rounding does not remove it.
    """
    mantissa = token.start() + min(12, len(re.split(rb"[eE]", token[0])[0]))
    at = max(found.end() for found in _DIGITS.finditer(raw, token.start(), mantissa)) - 1
    digit = raw[at : at + 1]
    return raw[:at] + (b"1" if digit == b"0" else b"%d" % (int(digit) - 1)) + raw[at + 1 :]


def _same(value: float | None, two: float | None) -> bool:
    """Return whether two values are equal, or both are NaN."""
    return value == two or (value != value and two != two)


def _factor(raw: bytes, token: re.Match[bytes], value: float | None, other: float | None) -> float | None:
    """Return the factor from number to value that holds in the line and in the changed line, or ``None``."""
    moved = _TOKEN.match(_changed_in(raw, token), token.start())
    if value is None or other is None or moved is None:
        return None
    numbers = _number(token[0]), _number(moved[0])
    for factor in _FACTORS if all(numbers) else _FACTORS[1:]:
        if [_times(number, factor) for number in numbers] == [value, other]:
            return factor
    return None


def _number(text: bytes) -> float:
    return float(text.replace(b",", b"")) if b"," in text else float(text)


def _times(number: float, factor: float) -> float:
    """Return the value of a number, computed exactly as in the reading of single lines."""
    if factor == _INVERSE:
        return 1 / number
    return number / 1000 if factor == 1e-3 else number * factor


def _conversion(like: bytes, name: str, factor: float) -> Callable[[bytes], float | None]:
    """Return the converter for numbers of the same form."""
    if name == "total_steps":
        return lambda text: int(text.replace(b",", b"")) or None
    if name in _COUNTS:
        return int if b"," not in like else lambda text: int(text.replace(b",", b""))
    if factor == 1.0:
        return float if b"," not in like else _number
    if factor in (GIB, MIB) and b"," not in like:
        return lambda text: float(text) * factor
    return lambda text: _times(_number(text), factor)


def _shape_of(token: bytes) -> bytes:
    """Return the expression for numbers of the same form."""
    first, *others = (re.escape(part) for part in _DIGITS.split(token))
    # a number may have any number of digits after the decimal point
    return first + _RUN + (rb"\d+" + _AT_ONCE).join(others)


def _is_stamp(
    raw: bytes, tokens: _Tokens, stamp: list[int], time: float | None, changed: Sequence[_Outcome]
) -> bool:
    """Return whether the line's time is that of the text from the first to the last of these numbers."""
    start, end = tokens[stamp[0]].start(), tokens[stamp[-1]].end()
    if stamp != list(range(stamp[0], stamp[-1] + 1)) or _stamp_time(raw[start:end]) != time:
        return False
    return all(
        _stamp_time(_changed_in(raw, tokens[index])[start:end]) == changed[index]["time"] for index in stamp
    )


@lru_cache(maxsize=65536)
def _second(text: bytes) -> float | None:
    return time_of_line(text.decode("ascii", "replace"))


@lru_cache(maxsize=16384)  # other lines of the block share the time
def _stamp_time(text: bytes) -> float | None:
    """Return the time of a timestamp by itself; the seconds, which many lines share, are cached."""
    if len(text) > 20 and text[19] in b".," and text[20:].isdigit():
        second = _second(text[:19])
        return None if second is None else second + int(text[20:]) / 10 ** (len(text) - 20)
    return _second(text)


def _leading_time(text: bytes) -> float | None:
    """Return the time at a line's start, quickly if its fraction ends the timestamp."""
    found = _FRACTIONAL.match(text)
    return _stamp_time(found[1]) if found else time_of_line(text.decode("utf-8", "replace"))
