"""Lines of small runs, and shortcuts to parts of their diagnosis."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from signal import Signals

from stallwatch_rules.endings import Ending
from stallwatch_rules.messages import message
from stallwatch_rules.records import Diagnosis, Finding

START = datetime(2026, 5, 2, 9, 0, tzinfo=timezone.utc)
STAND = "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7) ran for 1800123 milliseconds"
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
SIGTERM = "Sending process 812 closing signal SIGTERM"

FINISHED = Ending("finished", 0, detail=message("run.exited", code=0))
FAILED = Ending("failed", 1, detail=message("run.exited", code=1))


def killed_by(signal: str, *, passed_on: str = "") -> Ending:
    """Return the ending of a command that a signal ended, perhaps after Stallwatch forwarded another one."""
    detail = message("run.ended-signal", signal=signal)
    if passed_on:
        detail = message("run.passed-on", signal=passed_on, how=message("run.status-signal", signal=signal))
    return Ending("killed", 128 + int(Signals[signal]), signal, detail)


def steps(first: int, last: int, *, total: int | None = None) -> str:
    of = f"/{total}" if total else ""
    return "".join(f"step {step}{of} loss 1.5\n" for step in range(first, last + 1))


def stamped(rows: list[tuple[float, str]]) -> str:
    """Return the rows as lines of a container runtime, with times in seconds after the start."""
    return "".join(
        f"{(START + timedelta(seconds=at)).strftime('%Y-%m-%dT%H:%M:%S.%f')}000Z stdout F {text}\n"
        for at, text in rows
    )


def raised(error: str, file: str = "/home/ada/train.py") -> str:
    return f'Traceback (most recent call last):\n  File "{file}", line 5, in main\n    run()\n{error}\n'


def primary(diagnosis: Diagnosis) -> str | None:
    return diagnosis.primary.rule if diagnosis.primary else None


def finding(diagnosis: Diagnosis, rule: str) -> Finding:
    return next(finding for finding in diagnosis.findings if finding.rule == rule)
