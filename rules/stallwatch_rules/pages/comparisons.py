"""Compare numbers that patterns captured: ``joined > expected``.

A rule page compares captures in ``when`` and in the conditions of fixes. The numbers can have units of memory
(``2.00 GiB``).
"""

from __future__ import annotations

import operator
import re
from collections.abc import Mapping

import msgspec

from stallwatch_rules.text.lazy import lazy

_COMPARISON = lazy(r"(\w+) (>|<=) (\w+)")
_AMOUNT = lazy(r"(\d[\d,]*(?:\.\d+)?) ?(?:([KMGT])i?B|B|bytes)?", re.IGNORECASE)
_OPERATORS = {">": operator.gt, "<=": operator.le}


class Comparison(msgspec.Struct, frozen=True):
    """A comparison of the numbers that two named groups captured."""

    left: str
    sign: str
    right: str

    def holds(self, captures: Mapping[str, str]) -> bool | None:
        """Return whether the comparison holds, or ``None`` if one of the numbers was not captured."""
        left, right = (parse_amount(captures.get(name, "")) for name in (self.left, self.right))
        return None if left is None or right is None else _OPERATORS[self.sign](left, right)


def parse_comparison(text: str) -> Comparison | None:
    """Parse ``left > right`` or ``left <= right``. Return ``None`` for other text."""
    found = _COMPARISON.fullmatch(text)
    return Comparison(*found.groups()) if found is not None else None


def parse_amount(text: str) -> float | None:
    """Parse a number with or without a unit of memory (``2.00 GiB``). Return ``None`` for other text."""
    found = _AMOUNT.fullmatch(text.strip())
    if found is None:
        return None
    power = "kmgt".find(found[2].lower()) + 1 if found[2] else 0
    return float(found[1].replace(",", "")) * 1024.0**power
