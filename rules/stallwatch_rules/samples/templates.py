"""Read lines with templates, which map the numbers in a line to values.

Lines with the same template differ only in their digits.

A template is learned from one line. For this purpose, each number in the line is changed in turn, and the
changed line is reread. Each value must be a number in the line multiplied by a factor. Otherwise, no
template is learned, and such lines are read one by one.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from stallwatch_rules.lines.stamps import time_of_line, unix_seconds
from stallwatch_rules.samples.fields import GIB, MIB, Found
from stallwatch_rules.text.lazy import lazy

DIGITS = b"0123456789"
_TOKEN = lazy(rb"\d{1,3}(?:,\d{3})+(?:\.\d+)?(?![\d,])|\d+(?:\.\d*)?(?:[eE][-+]?\d+)?|\.\d+(?:[eE][-+]?\d+)?")
_NUMERALS = lazy(rb"\d+")
_AT_ONCE = b"+" if sys.version_info >= (3, 11) else b""  # possessive quantifier: no backtracking
_RUN = rb"\d{1,15}" + _AT_ONCE  # longer numbers are not counts
_INVERSE = 0.0  # factor for values that are the inverse of the number
_FACTORS = (_INVERSE, 1.0, -1.0, 1e-3, GIB, MIB)
_COUNTS = ("rank", "step", "total_steps")
_MOST_TOKENS = 60
_LONGEST = 1000  # maximum number of bytes in a text that a template can read

# Number of texts that are read before a template is learned; learning takes as long as reading 40 texts.
_WORTH_LEARNING = 32
_MOST_KINDS = 1024

Outcome = dict[str, Any]  #: name → value that was read from a line
Groups = list[tuple[str, Callable[[bytes], float | None]]]  #: name and conversion function of each group
_Tokens = Sequence[re.Match[bytes]]


class Template(NamedTuple):
    """A template for lines that differ only in their digits. It maps the numbers in a line to values."""

    pattern: bytes  #: regular expression for the whole line, with a group for each required number
    groups: Groups
    example: Outcome  #: values that were read from the line from which the template was learned


class TemplateReader:
    """A wrapper that speeds up a function that reads lines of text.

    If the template of a line is known, the template reads the line. The function reads all other lines.
    """

    def __init__(self, read: Callable[[str], Found | None]) -> None:
        self._read = read
        self._seen: dict[bytes, int] = {}  # text without digits → number of such texts that contained metrics
        self._known: dict[bytes, tuple[Any, ...]] = {}  # text without digits → parts of its template

    def __call__(self, text: str) -> Found | None:
        """Return the same result as the wrapped function."""
        raw = text.encode("utf-8", "surrogatepass")
        key = raw.translate(None, DIGITS)
        known = self._known.get(key)
        if known is not None and (match := known[0](raw)) is not None:
            _, groups, example, series = known
            values = example.copy()
            try:
                for (name, conversion), number in zip(groups, match.groups(), strict=True):
                    values[name] = conversion(number)
            except ZeroDivisionError:  # zero steps per second cannot be converted to seconds per step
                return self._read(text)
            return Found(values.pop("step"), values.pop("total_steps"), values, series)
        found = self._read(text)
        if found is not None and known is None and len(raw) <= _LONGEST:
            self._count(raw, key)
        return found

    def _count(self, raw: bytes, key: bytes) -> None:
        seen = self._seen[key] = self._seen.get(key, 0) + 1
        if seen == _WORTH_LEARNING and (template := learn(raw, self._outcome)) is not None:
            example = template.example
            known = re.compile(template.pattern).fullmatch, template.groups, example, example.pop("series")
            self._known[key] = known
        if len(self._seen) > _MOST_KINDS:
            self._seen.clear()
            self._known.clear()

    def _outcome(self, raw: bytes) -> Outcome | None:
        found = self._read(raw.decode("utf-8", "surrogatepass"))
        if found is None:
            return None
        return {"step": found.step, "total_steps": found.total, "series": found.series, **found.values}


def learn(raw: bytes, read: Callable[[bytes], Outcome | None]) -> Template | None:
    """Learn a template from one line, which `read` reads. Return ``None`` if no template can be learned.

    If the values of the line include a time, this time must be a timestamp in the line. Each other value that
    varies must depend on exactly one number in the line.
    """
    tokens = list(_TOKEN.finditer(raw))
    base = read(raw) if len(tokens) <= _MOST_TOKENS else None
    if base is None:
        return None
    changed: list[Outcome] = []
    for token in tokens:
        if _number(token[0]) == _moved(raw, token):  # the number is too small or too large to be changed
            return None
        other = read(_changed_in(raw, token))
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
        value, other_value = base[name], changed[first][name]
        if more or first in wanted or isinstance(value, (bool, str)):
            return None
        factor = _factor(raw, tokens[first], value, other_value)
        if factor is None or (name in _COUNTS and factor != 1.0):
            return None
        wanted[first] = name, factor
    template = Template(*_expression(raw, tokens, wanted, stamp), base)
    # The pattern does not match if a number is too long.
    return template if re.fullmatch(template.pattern, raw) else None


def _expression(
    raw: bytes, tokens: _Tokens, wanted: dict[int, tuple[str, float]], stamp: list[int]
) -> tuple[bytes, Groups]:
    parts: list[bytes] = []
    groups: Groups = []
    at = 0
    for index, token in enumerate(tokens):
        parts.append(re.escape(raw[at : token.start()]))
        shape = _shape_of(token[0])
        if stamp and index == stamp[0]:
            parts.append(b"(")
            groups.append(("time", stamp_time))
        if index in wanted:
            name, factor = wanted[index]
            groups.append((name, _conversion(token[0], name, factor)))
            shape = b"(" + shape + b")"
        parts.append(shape)
        if stamp and index == stamp[-1]:
            parts.append(b")")
        at = token.end()
    parts.append(re.escape(raw[at:]))
    return b"".join(parts), groups


def _changed_in(raw: bytes, token: re.Match[bytes]) -> bytes:
    """Return the line with the last significant digit of one of its numbers changed."""
    mantissa = token.start() + min(12, len(re.split(rb"[eE]", token[0])[0]))
    at = max(found.end() for found in _NUMERALS.finditer(raw, token.start(), mantissa)) - 1
    digit = raw[at : at + 1]
    return raw[:at] + (b"1" if digit == b"0" else b"%d" % (int(digit) - 1)) + raw[at + 1 :]


def _moved(raw: bytes, token: re.Match[bytes]) -> float | None:
    """Return the value of a number in the changed line, or ``None`` if the changed text is not a number."""
    moved = _TOKEN.match(_changed_in(raw, token), token.start())
    return None if moved is None else _number(moved[0])


def _same(value: float | None, other: float | None) -> bool:
    """Return whether two values are equal. Two NaN values count as equal."""
    return value == other or (value != value and other != other)


def _factor(raw: bytes, token: re.Match[bytes], value: float | None, other: float | None) -> float | None:
    """Return the factor between a number and a value, or ``None`` if it differs in the changed line."""
    moved = _moved(raw, token)
    if value is None or other is None or moved is None:
        return None
    numbers = _number(token[0]), moved
    for factor in _FACTORS if all(numbers) else _FACTORS[1:]:
        if [_times(number, factor) for number in numbers] == [value, other]:
            return factor
    return None


def _number(text: bytes) -> float:
    return float(text.replace(b",", b"")) if b"," in text else float(text)


def _times(number: float, factor: float) -> float:
    """Multiply a number by a factor, with the same operations as the reader of single lines."""
    if factor == _INVERSE:
        return 1 / number
    return number / 1000 if factor == 1e-3 else number * factor


def _conversion(like: bytes, name: str, factor: float) -> Callable[[bytes], float | None]:
    """Return a function that converts numbers with the same form as `like` to values."""
    if b"," in like:
        plain = _conversion(like.replace(b",", b""), name, factor)
        return lambda text: plain(text.replace(b",", b""))
    if name == "total_steps":
        return lambda text: int(text) or None
    if name in _COUNTS:
        return int
    if factor == 1.0:
        return float
    if factor == _INVERSE:
        return lambda text: 1 / float(text)
    if factor == 1e-3:
        return lambda text: float(text) / 1000
    return lambda text: float(text) * factor


def _shape_of(token: bytes) -> bytes:
    """Return a regular expression for numbers with the same form as this number."""
    first, *others = (re.escape(part) for part in _NUMERALS.split(token))
    # A number can have any number of digits after the decimal point.
    return first + _RUN + (rb"\d+" + _AT_ONCE).join(others)


def _is_stamp(
    raw: bytes, tokens: _Tokens, stamp: list[int], time: float | None, changed: Sequence[Outcome]
) -> bool:
    """Return whether the time of the line is the timestamp that consists of these numbers."""
    start, end = tokens[stamp[0]].start(), tokens[stamp[-1]].end()
    if stamp != list(range(stamp[0], stamp[-1] + 1)) or stamp_time(raw[start:end]) != time:
        return False
    return all(
        stamp_time(_changed_in(raw, tokens[index])[start:end]) == changed[index]["time"] for index in stamp
    )


@lru_cache(maxsize=65536)
def _second(text: bytes) -> float | None:
    return time_of_line(text.decode("ascii", "replace"))


def stamp_time(text: bytes) -> float | None:
    """Return the time that a formatted timestamp or a Unix timestamp represents.

    Whole seconds are cached, because many timestamps fall within the same second.
    """
    if b"-" not in text[:5] and text.replace(b".", b"", 1).isdigit():
        return unix_seconds(float(text)) if 10 <= len(text.partition(b".")[0]) <= 19 else None
    if len(text) > 20 and text[19] in b".," and text[20:].isdigit():
        second = _second(text[:19])
        return None if second is None else second + int(text[20:]) / 10 ** (len(text) - 20)
    return _second(text)
