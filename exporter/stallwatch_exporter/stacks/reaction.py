"""``[stall] on_stall``: what is done when a stall was raised and its evidence is in."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import threading
import time
from collections.abc import Callable
from typing import TypeVar

import psutil

from stallwatch_exporter.incident import Incident
from stallwatch_exporter.stacks.processes import family
from stallwatch_exporter.stacks.usercommand import run_line

REPORT, ABORT, COMMAND = "report", "abort", "command "
GRACE_SECONDS = 30.0  #: between SIGTERM and SIGKILL: torchrun itself gives its ranks that long
LOOK_PATIENCE_SECONDS = 5.0  #: for what the system tells of processes, which is a matter of milliseconds
_LOOK_SECONDS = 0.05
_Answer = TypeVar("_Answer")


def react(
    policy: str,
    incident: Incident,
    command: int | None,
    notice: Callable[[str], None],
    *,
    folder: str = "",
    grace: float = GRACE_SECONDS,
) -> threading.Thread | None:
    """Do what `policy` says, from a thread; `command` is the process to end, where there is one."""
    if policy == ABORT:
        if command is None:
            notice("[stall] on_stall = abort ends nothing here: only stallwatch run knows the command")
            return None
        notice(f"the run stands still: ending it, as [stall] on_stall = abort says (grace {grace:.0f} s)")
        return _started(lambda: abort(command, grace))
    if policy.startswith(COMMAND):
        line = policy[len(COMMAND) :].strip()
        return _started(
            lambda: run_line(line, incident, variables(incident, command, folder), notice, folder=folder)
        )
    return None


def abort(command: int, grace: float, *, patience: float = LOOK_PATIENCE_SECONDS) -> None:
    """SIGTERM to the command, which ends its ranks; SIGKILL to all that is left after `grace` seconds.

    Asking the system about a process that is stuck in the kernel may never end, so nothing here waits longer
    than `patience` seconds for an answer. Without one only the command is ended: its family is not known.
    """
    there = _answer(lambda: family(command), patience)
    if there is None:
        _signal(command, signal.SIGTERM)
        # Its number is its own until somebody has waited for it, and may then be another process's.
        if not _answer(lambda: _ends(lambda: _exists(command), grace), grace + patience):
            _signal(command, signal.SIGKILL)
        return
    if not there:
        return  # it ended by itself
    _signal(command, signal.SIGTERM)
    _answer(lambda: _ends(lambda: any(map(_runs, there)), grace), grace + patience)
    # Each by itself: a rank that was stopped could not even take a SIGTERM, and one may give no answer.
    killing = [threading.Thread(target=_kill, args=(process,), daemon=True) for process in there]
    for each in killing:
        each.start()
    end = time.monotonic() + patience
    for each in killing:
        each.join(max(0.0, end - time.monotonic()))


def _answer(question: Callable[[], _Answer], patience: float) -> _Answer | None:
    """What it returns, or ``None`` where that takes too long: then its thread is left to itself."""
    answers: queue.SimpleQueue[_Answer] = queue.SimpleQueue()
    threading.Thread(target=lambda: answers.put(question()), daemon=True).start()
    try:
        return answers.get(timeout=patience)
    except queue.Empty:
        return None


def _ends(there: Callable[[], bool], grace: float) -> bool:
    """Whether it is no longer there, within `grace` seconds."""
    # Only looked at: psutil's own waiting would take the exit status from whoever waits for the command.
    end = time.monotonic() + grace
    while there():
        if time.monotonic() >= end:
            return False
        time.sleep(_LOOK_SECONDS)
    return True


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except OSError:
        return False
    return True


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(OSError):
        os.kill(pid, number)


def _kill(process: psutil.Process) -> None:
    with contextlib.suppress(psutil.Error, OSError):
        process.kill()


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except (psutil.Error, OSError):
        return False


def variables(incident: Incident, command: int | None, folder: str) -> dict[str, str]:
    """What the command is told in its environment; what is not known is empty."""
    stacks = incident.stacks
    facts = {
        "RUN": incident.run,
        "INCIDENT": incident.id,
        "RULE": incident.rule,
        "PHASE": incident.phase,
        "STEP": incident.step,
        "STALLED_SECONDS": incident.stalled_seconds,
        "RANKS": ",".join(str(rank) for rank in stacks.odd) if stacks is not None else "",
        "STACKS": os.path.join(folder, stacks.file) if stacks is not None and stacks.file and folder else "",  # noqa: PTH118
        "RUN_FOLDER": folder,
        "COMMAND_PID": command,
    }
    return {f"STALLWATCH_{name}": "" if value is None else str(value) for name, value in facts.items()}


def _started(work: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=work, name="stallwatch on_stall", daemon=True)
    thread.start()
    return thread
