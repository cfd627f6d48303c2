"""``[stall] on_stall``: what is done when a stall was raised and its evidence is in."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable

import psutil

from stallwatch_exporter.incident import Incident
from stallwatch_exporter.stacks.usercommand import run_line

REPORT, ABORT, COMMAND = "report", "abort", "command "
GRACE_SECONDS = 30.0  #: between SIGTERM and SIGKILL: torchrun itself gives its ranks that long
_LOOK_SECONDS = 0.05


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


def abort(command: int, grace: float) -> None:
    """SIGTERM to the command, which ends its ranks; SIGKILL to all that is left after `grace` seconds."""
    try:
        leader = psutil.Process(command)
        family = [leader, *leader.children(recursive=True)]
        leader.send_signal(signal.SIGTERM)
    except (psutil.Error, OSError):
        return  # it ended by itself
    # Only looked at: psutil's own waiting would take the exit status from whoever waits for the command.
    end = time.monotonic() + grace
    while any(map(_runs, family)) and time.monotonic() < end:
        time.sleep(_LOOK_SECONDS)
    for process in filter(_runs, family):  # a rank that was stopped could not even take a SIGTERM
        try:
            process.kill()
        except (psutil.Error, OSError):
            continue


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
