"""Answer the agent's queries in a Python program that might not be a rank.

A rank waits for queries in a thread. In other programs, a thread would have side effects. For example, in
Python 3.12 and later, ``os.fork`` warns if another thread exists. Therefore, this module only registers
``faulthandler`` for a signal, which costs nothing until the signal arrives. If the process is later
identified as a rank, the process keeps this registration.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # importing `typing` takes longer than importing this module
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

#: Maximum number of ancestors to check. For example, a shell might run between the agent and the program.
_MOST_ABOVE = 4


def register_signal(folder: str, environ: Mapping[str, str] = os.environ) -> None:
    """If this process is the command or its child but not a launcher's rank, register the signal.

    `folder` is the folder of the rings. The function imports few modules before its checks because every
    Python process runs the checks.
    """
    words = getattr(sys, "orig_argv", ())  # the command line, which Python 3.10 and later provide
    if "RANK" in environ or "LOCAL_RANK" in environ or is_replay(words) or not _is_near(folder):
        return
    import atexit
    import time

    from .clock import steady_offset
    from .stacks import register_own_signal

    now = time.monotonic() + steady_offset(environ)
    answerer = register_own_signal(os.path.join(folder, f"0-{os.getpid()}-{now * 1e9:.0f}.ring"))
    atexit.register(answerer.leave)


def is_replay(words: Sequence[str]) -> bool:
    """Return whether a command is ``stallwatch replay``, which reports steps that are not current.

    Up to two words, such as ``python -u``, can precede ``stallwatch``.
    """
    return any(
        os.path.basename(word) == "stallwatch" and "replay" in words[at + 1 : at + 2]
        for at, word in enumerate(words[:3])
    )


def _is_near(folder: str) -> bool:
    """Return whether the agent is a close ancestor of this process."""
    agent = os.path.basename(folder).partition("-")[0]  # the name starts with the agent's process ID
    above = str(os.getppid())
    for _ in range(_MOST_ABOVE):
        if above == agent:
            return True
        try:
            with open(f"/proc/{above}/stat", encoding="ascii", errors="replace") as status:
                above = status.read().rpartition(")")[2].split()[1]
        except OSError:
            return False
    return False
