"""Choose the messages to send next, and claim them for one process.

A claim identifies its process, so that other processes on this host can drop the claim of a dead process
before the claim expires. A claim has 32 characters: a digest of the namespace in which the process ID is
valid (``process_namespace``), the process ID, the start time of the process, and random characters. Claims
from earlier versions of Stallwatch contain only random characters and count as claims of processes on other
hosts.
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
    """Return a new claim for this process. If the process cannot be identified, all characters are random."""
    try:
        holder = f"{_here()}{os.getpid():08x}{int(psutil.Process().create_time()):08x}"
    except (psutil.Error, OSError):
        holder = ""
    return (holder if len(holder) == 3 * _PART else secrets.token_hex(12)) + secrets.token_hex(_PART // 2)


def holder_is_gone(claim: str) -> bool:
    """Return whether the process that made the claim has ended.

    Return False for a process in another container or on another host, because such a process cannot be
    observed.
    """
    if len(claim) != 4 * _PART or not _here() or not claim.startswith(_here()):
        return False
    pid, born = (int(claim[at : at + _PART], 16) for at in (_PART, 2 * _PART))
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except OSError:  # a process of another user that psutil cannot see (proc(5): hidepid)
        return False
    return not is_there(pid, born)


@functools.cache
def _here() -> str:
    namespace = process_namespace()
    return hashlib.sha256(namespace.encode()).hexdigest()[:_PART] if namespace else ""


LOOKED_AT = 500
# A message that was refused this many times is sent alone, because the chat might refuse its content. If
# the chat has accepted other messages since the refused message was created, the refused message delays only
# messages about its own incident. Otherwise, another message is tried only immediately after an attempt to
# send the refused message, so that the oldest message is sent first after an outage.
IN_ORDER = 5
_RIGHT_BEHIND = 5.0  # maximum seconds from a refused message to the attempt to send another message
_ONE_BY_ONE = 3  # up to this many waiting messages are sent separately


@dataclass(frozen=True)
class Row:
    """The properties of a waiting message that determine when the message is sent."""

    attempts: int
    is_due: bool
    is_claimed: bool  #: True while a process is sending the message
    about: str = ""  #: the incident or run whose messages must stay in order
    alone: bool = False
    created_at: float = 0.0
    tried_at: float = 0.0
    is_disliked: bool = False  #: True if the chat has accepted other messages since this message was created


def chosen(rows: Sequence[Row], now: float) -> slice:
    """Return the slice of `rows` to send. `rows` contains a chat's waiting messages, oldest first.

    The slice is empty if all messages must wait until a refused message is retried, or until the process
    that is sending a message has finished.
    """
    passed: set[str] = set()
    tried = math.inf  # time of the oldest attempt among the earlier rows
    for at, row in enumerate(rows):
        if row.is_claimed:
            return slice(0)
        is_next = row.is_due
        if tried < math.inf:
            is_next = row.created_at <= tried and row.tried_at < tried and now - tried < _RIGHT_BEHIND
        if is_next and row.about not in passed:
            return slice(at, at + _together(rows[at:], passed))
        if row.attempts < IN_ORDER and row.about not in passed:
            return slice(0)  # later rows must also wait
        passed.add(row.about)
        if not row.is_disliked:
            tried = min(tried, row.tried_at)
    return slice(0)


def _together(rows: Sequence[Row], passed: set[str]) -> int:
    if _is_sent_alone(rows[0]):
        return 1
    count = 0
    for row in rows:
        if _is_sent_alone(row) or row.about in passed or row.is_claimed:
            break
        if row.attempts and not row.is_due:
            break
        count += 1
    return count if count > _ONE_BY_ONE else 1


def _is_sent_alone(row: Row) -> bool:
    return row.alone or row.attempts >= IN_ORDER
