"""Which messages are tried next, and by whom.

A claim names its holder, so that one whose holder died on this host need not run out. It has 32 characters:
a digest of where process numbers mean the same (``process_namespace``), the holder's process number and
birth, and some that no other claim has. Those of older versions are all chance: they are taken for
somebody's elsewhere.
"""

from __future__ import annotations

import functools
import hashlib
import math
import os
import secrets
from collections.abc import Sequence
from dataclasses import dataclass

import psutil

from stallwatch_exporter.rings.presence import is_there, process_namespace

_PART = 8


def new_claim() -> str:
    """One of this process; where it cannot be distinguished from others', of somebody elsewhere."""
    try:
        who = f"{_here()}{os.getpid():08x}{int(psutil.Process().create_time()):08x}"
    except (psutil.Error, OSError):
        who = ""
    return (who if len(who) == 3 * _PART else secrets.token_hex(12)) + secrets.token_hex(_PART // 2)


def holder_is_gone(claim: str) -> bool:
    """Whether the process that claimed has ended; not of one in another container or on another host."""
    if len(claim) != 4 * _PART or not _here() or not claim.startswith(_here()):
        return False
    pid, born = (int(claim[at : at + _PART], 16) for at in (_PART, 2 * _PART))
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except OSError:  # another user's, whom psutil may not see (proc(5): hidepid)
        return False
    return not is_there(pid, born)


@functools.cache
def _here() -> str:
    namespace = process_namespace()
    return hashlib.sha256(namespace.encode()).hexdigest()[:_PART] if namespace else ""


LOOKED_AT = 500
# A message that was refused so often takes no other one with it: it may be the message that the chat does not
# like. If the chat took others meanwhile, it holds up only news of its own incident. Else others are tried
# right behind it, and at no other time: after an outage the oldest comes first.
IN_ORDER = 5
_RIGHT_BEHIND = 5.0  # seconds
_ONE_BY_ONE = 3  # up to this many are sent as separate messages


@dataclass(frozen=True)
class Row:
    """What is minded of a message that waits."""

    attempts: int
    is_due: bool
    is_claimed: bool  #: somebody is trying it
    about: str = ""  #: whose news must come in their order
    alone: bool = False
    created_at: float = 0.0
    tried_at: float = 0.0
    is_disliked: bool = False  #: the chat took others since this one came


def chosen(rows: Sequence[Row], now: float) -> slice:
    """Which of the `rows`, the oldest first, to send; empty where order or patience forbid it."""
    passed: set[str] = set()
    tried = math.inf  # the oldest try of those before
    for at, row in enumerate(rows):
        if row.is_claimed:
            return slice(0)
        is_next = row.is_due
        if tried < math.inf:
            is_next = row.created_at <= tried and row.tried_at < tried and now - tried < _RIGHT_BEHIND
        if is_next and row.about not in passed:
            return slice(at, at + _together(rows[at:], passed))
        if row.attempts < IN_ORDER and row.about not in passed:
            return slice(0)  # those after it wait, too
        passed.add(row.about)
        if not row.is_disliked:
            tried = min(tried, row.tried_at)
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
    return row.alone or row.attempts >= IN_ORDER
