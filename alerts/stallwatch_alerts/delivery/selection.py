"""Which of a chat's waiting messages go next, and how many of them together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stallwatch_alerts.delivery.waits import LONGEST_PAUSE, SKEW

LOOKED_AT = 500
_CLAIM_AT_MOST = 60.0
# A message that was refused so often holds up only news of its own incident, and takes no other one with it:
# it may be the message that the chat does not like.
_IN_ORDER = 5
_ONE_BY_ONE = 3  # so few are told each by itself


@dataclass(frozen=True)
class Row:
    """What is minded of a message that waits."""

    attempts: int
    next_at: float
    tried_at: float
    claimed_until: float
    about: str = ""  #: whose news must come in their order
    alone: bool = False


def chosen(rows: Sequence[Row], now: float) -> slice:
    """Which of the `rows`, the oldest first, to send now; empty where order or patience forbid it."""
    passed: set[str] = set()
    for at, row in enumerate(rows):
        if is_claimed(row, now):
            return slice(0)
        if is_due(row, now) and row.about not in passed:
            return slice(at, at + _together(rows[at:], passed, now))
        if row.attempts < _IN_ORDER and row.about not in passed:
            return slice(0)  # those after it wait, too
        passed.add(row.about)
    return slice(0)


def is_claimed(row: Row, now: float) -> bool:
    """Whether somebody is trying it. A claim from the future is one from before a clock was set back."""
    return now < row.claimed_until <= now + _CLAIM_AT_MOST + SKEW


def is_due(row: Row, now: float) -> bool:
    """Whether its time has come, or cannot be told any more because a clock was set back."""
    set_back = row.tried_at > now + SKEW or row.next_at > now + LONGEST_PAUSE + SKEW
    return row.next_at <= now or set_back


def _together(rows: Sequence[Row], passed: set[str], now: float) -> int:
    if _goes_alone(rows[0]):
        return 1
    count = 0
    for row in rows:
        if _goes_alone(row) or row.about in passed or is_claimed(row, now):
            break
        if row.attempts and not is_due(row, now):
            break
        count += 1
    return count if count > _ONE_BY_ONE else 1


def _goes_alone(row: Row) -> bool:
    return row.alone or row.attempts >= _IN_ORDER
