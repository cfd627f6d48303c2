"""Lines that differ in their digits only are read alike: which number becomes which value is learnt once.

It is found by changing one number of a line after the other and reading the line anew. What cannot be
explained by one number and a factor is not learnt.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from typing import NamedTuple

from stallwatch_rules.samples.fields import GIB, MIB, Found
from stallwatch_rules.text.lazy import lazy

Outcome = dict[str, float | str | None]

TOKEN = lazy(rb"\d{1,3}(?:,\d{3})+(?:\.\d+)?(?![\d,])|\d+(?:\.\d*)?(?:[eE][-+]?\d+)?|\.\d+(?:[eE][-+]?\d+)?")
_DIGITS = lazy(rb"\d+")
_AT_ONCE = b"+" if sys.version_info >= (3, 11) else b""  # possessive: nothing to come back to
_RUN = rb"\d{1,15}" + _AT_ONCE  # longer counts are none
_FACTORS = (1.0, -1.0, 1e-3, GIB, MIB)

_WORTH_LEARNING = 16  # lines of a template
_MOST_TEMPLATES = 1000
_LONGEST = 200  # characters: readers look no further than that behind and before a word
_TEXT_DIGITS = lazy(r"\d+", re.ASCII)


class Explained(NamedTuple):
    """What the numbers of a line, by their place among them, are to its outcome."""

    wanted: dict[int, tuple[str, float]]  #: number → name of the value, and the factor (0: one over it)
    depends: dict[str, list[int]]  #: value → the numbers that it depends on
    changed: dict[int, Outcome]  #: number → the outcome with another one in its place


def explain(
    raw: bytes, tokens: Sequence[re.Match[bytes]], base: Outcome, read: Callable[[bytes], Outcome | None]
) -> Explained | None:
    """Which numbers become which values of ``base``, the outcome of the line, if that is all there is to it.

    A ``time`` may depend on several.
    """
    found = Explained({}, {}, {})
    for index, token in enumerate(tokens):
        other = read(changed_in(raw, token))
        if other is None or other.keys() != base.keys():
            return None
        found.changed[index] = other
        for name, value in base.items():
            if not same(value, other[name]):
                found.depends.setdefault(name, []).append(index)
    for name, (first, *more) in found.depends.items():
        if name == "time":
            continue
        factor = _factor(raw, tokens[first], base[name], found.changed[first][name])
        if more or factor is None or first in found.wanted:
            return None
        found.wanted[first] = name, factor
    return found


def changed_in(raw: bytes, token: re.Match[bytes]) -> bytes:
    """The line with another last digit in this number: none of its exponent, and none that rounding drops."""
    mantissa = token.start() + min(12, len(re.split(rb"[eE]", token[0])[0]))
    at = max(found.end() for found in _DIGITS.finditer(raw, token.start(), mantissa)) - 1
    digit = raw[at : at + 1]
    return raw[:at] + (b"1" if digit == b"0" else b"%d" % (int(digit) - 1)) + raw[at + 1 :]


def same(one: object, two: object) -> bool:
    """Whether two values are equal, or both are NaN."""
    return one == two or (one != one and two != two)


def _factor(raw: bytes, token: re.Match[bytes], value: object, other: object) -> float | None:
    """By what the number is multiplied to give the value (0: it is divided by), if that explains it."""
    if not isinstance(value, int | float) or not isinstance(other, int | float):
        return None
    number = float(token[0].replace(b",", b""))
    moved = float(TOKEN.match(changed_in(raw, token), token.start())[0].replace(b",", b""))  # type: ignore[index]
    for factor in _FACTORS:
        if apply(number, factor) == value and apply(moved, factor) == other:
            return factor
    if number and moved and 1 / number == value and 1 / moved == other:
        return 0.0
    return None


def apply(number: float, factor: float) -> float:
    """The value of a number: exactly as the reading of single lines computes it."""
    return number / 1000 if factor == 1e-3 else number * factor


def shape_of(token: bytes) -> bytes:
    """The expression for a number that is written like this one."""
    first, *others = (re.escape(part) for part in _DIGITS.split(token))
    return first + _RUN + (rb"\d+" + _AT_ONCE).join(others)  # behind a point, as many as a float has


class _Template(NamedTuple):
    """How the lines of one template are read."""

    pattern: re.Pattern[str]  #: with a group for each number that is needed
    groups: Sequence[tuple[str, float]]  #: name of the value and factor, of each group
    constants: Outcome

    def read(self, numbers: Sequence[str]) -> Found:
        """The values of these numbers."""
        values: Outcome = dict(self.constants)
        for (name, factor), number in zip(self.groups, numbers, strict=True):
            values[name] = apply(float(number), factor) if factor else 1 / float(number)
        step, total, series = values.pop("step"), values.pop("total"), values.pop("series")
        return Found(
            None if step is None else int(step),
            int(total) if total else None,
            values,  # type: ignore[arg-type]
            series,  # type: ignore[arg-type]
        )


class ByTemplate:
    """A reader of lines that learns the templates which come often.

    How it reads must not depend on the values of the numbers, nor on how many digits they have.
    """

    def __init__(self, read: Callable[[str], Found | None]) -> None:
        self._read = read
        self._known: dict[str, int | _Template] = {}  # lines of a template, until it is learnt

    def __call__(self, text: str) -> Found | None:
        """What the line holds."""
        if len(text) > _LONGEST:
            return self._read(text)
        key = _TEXT_DIGITS.sub("0", text)
        known = self._known.get(key, 0)
        if isinstance(known, _Template):
            found = known.pattern.fullmatch(text)
            return self._read(text) if found is None else known.read(found.groups())
        if len(self._known) >= _MOST_TEMPLATES:
            self._known.clear()
        self._known[key] = known + 1
        if known + 1 == _WORTH_LEARNING and (learnt := self._learn(text)) is not None:
            self._known[key] = learnt
        return self._read(text)

    def _learn(self, text: str) -> _Template | None:
        raw = text.encode("utf-8", "surrogatepass")
        tokens = list(TOKEN.finditer(raw))
        base = self._outcome(raw)
        explained = explain(raw, tokens, base, self._outcome) if base is not None else None
        if base is None or explained is None:
            return None
        if any(b"," in tokens[index][0] for index in explained.wanted):  # only some commas part thousands
            return None
        parts, at = [], 0
        for index, token in enumerate(tokens):
            shape = shape_of(token[0])
            parts += [
                re.escape(raw[at : token.start()]),
                b"(%s)" % shape if index in explained.wanted else shape,
            ]
            at = token.end()
        pattern = b"".join((*parts, re.escape(raw[at:]))).decode("utf-8", "surrogatepass")
        groups = [explained.wanted[index] for index in sorted(explained.wanted)]
        constants = {name: value for name, value in base.items() if name not in explained.depends}
        return _Template(re.compile(pattern, re.ASCII), groups, constants)

    def _outcome(self, raw: bytes) -> Outcome | None:
        found = self._read(raw.decode("utf-8", "surrogatepass"))
        if found is None:
            return None
        return {**found.values, "step": found.step, "total": found.total, "series": found.series}
