"""Who claimed a message: the claim tells, so that one whose holder died on this host need not run out.

A claim has 32 characters: a digest of where process numbers mean the same (``process_namespace``), the
holder's process number and birth, and some that no other claim has. Those of older versions are all chance:
they are taken for somebody's elsewhere.
"""

from __future__ import annotations

import functools
import hashlib
import os
import secrets

import psutil

from stallwatch_exporter.rings.presence import is_there, process_namespace

_PART = 8


def new_claim() -> str:
    """One of this process; where it cannot be told apart from others', of somebody elsewhere."""
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
