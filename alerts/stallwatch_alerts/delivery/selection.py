"""Which of a chat's waiting messages go next, and how many of them together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

LOOKED_AT = 500
# A message that was refused so often holds up only news of its own incident, and takes no other one with it:
# it may be the message that the chat does not like.
_IN_ORDER = 5
_ONE_BY_ONE = 3  # so few are told each by itself


@dataclass(frozen=True)
class Row:
    """What is minded of a message that waits."""

    attempts: int
    is_due: bool
    is_claimed: bool  #: somebody is trying it
    about: str = ""  #: whose news must come in their order
    alone: bool = False


def chosen(rows: Sequence[Row]) -> slice:
    """Which of the `rows`, the oldest first, to send; empty where order or patience forbid it."""
    passed: set[str] = set()
    for at, row in enumerate(rows):
        if row.is_claimed:
            return slice(0)
        if row.is_due and row.about not in passed:
            return slice(at, at + _together(rows[at:], passed))
        if row.attempts < _IN_ORDER and row.about not in passed:
            return slice(0)  # those after it wait, too
        passed.add(row.about)
    return slice(0)


def _together(rows: Sequence[Row], passed: set[str]) -> int:
    if _goes_alone(rows[0]):
        return 1
    count = 0
    for row in rows:
        if _goes_alone(row) or row.about in passed or row.is_claimed:
            break
        if row.attempts and not row.is_due:
            break
        count += 1
    return count if count > _ONE_BY_ONE else 1


def _goes_alone(row: Row) -> bool:
    return row.alone or row.attempts >= _IN_ORDER
