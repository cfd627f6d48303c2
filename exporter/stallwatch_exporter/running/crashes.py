"""Use all evidence of a run's end to find a process that crashed although the command returned 0.

A shell returns the status of its last action. For example, ``python train.py | tee log`` returns the status
of tee, and ``wait`` without arguments always returns 0. Therefore, the exit code of the command is only one
piece of evidence. The other pieces of evidence are the programs' exit codes from the kernel, the last
report of each interpreter, and the last step of the run. If no process was observed, the log is also
evidence.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import Literal

import msgspec

from stallwatch_exporter import steady
from stallwatch_rules.endings import GONE_ON, Crash, SurvivingRank

#: Progress more than this many seconds after the end of a process comes from other processes.
_AFTER_SECONDS = 1.0
#: Minimum number of seconds that two processes run at the same time if neither is a restart of the other.
_BESIDE_SECONDS = 2.0
#: Exit codes of processes that SIGHUP, SIGINT, or SIGTERM ended, including the codes that a shell returns.
_END_SIGNALS = frozenset((-1, -2, -15, 129, 130, 143))

Fate = Literal["up", "well", "failed", "silent", "unknown"]


class ProcessEnd(msgspec.Struct, frozen=True):
    """Record of how a process of a run ended, or that it is still running."""

    pid: int
    rank: int | None = None  #: ``None`` for a program that has no rank and reported no steps
    up: bool = False
    code: int | None = None  #: exit code from the kernel, ``-n`` for signal n, or ``None`` if unknown
    ended_at: float | None = None  #: steady time, like all times in this class
    probed: bool = False  #: true if the process had a probe that would have reported its end
    left: bool | None = None  #: whether the interpreter ended without an error, or ``None`` if unknown
    step: int | None = None  #: last step that the process reported
    stepped_at: float | None = None
    run_step: int | None = None  #: last step of the run when the end of the process was detected
    started: float | None = None  #: time when the process was first seen, or an earlier start time
    words: tuple[str, ...] = ()  #: command line, if known
    program: bool = False  #: true if a shell or a launcher started the process, not another Python program

    @property
    def is_check(self) -> bool:
        """True if the program is ``python -c`` code but not a process that ``multiprocessing`` started."""
        options = takewhile(lambda word: word.startswith("-"), self.words[1:])
        return "-c" in options and not any("multiprocessing" in word for word in self.words)

    @property
    def fate(self) -> Fate:
        """State or ending of the process, as far as known."""
        if self.up:
            return "up"
        if self.code is not None:
            return "failed" if self.code and not self._in_teardown else "well"
        if self.left is not None:
            return "well" if self.left else "failed"
        return "silent" if self.probed else "unknown"

    @property
    def is_ray_worker(self) -> bool:
        """Return whether Ray started the process, in which case its exit code has no meaning.

        Ray ends workers with SIGTERM, SIGKILL, or exit code 1. If a worker ends unexpectedly, the call that
        waits for the worker fails (ray 2.60, ``RayActorError``).
        """
        return bool(self.words) and self.words[0].startswith("ray::")

    def retried(self, other: ProcessEnd) -> bool:
        """Return whether this process is a successful retry of the failed process `other`."""
        same = bool(self.words) and (self.rank, self.words) == (other.rank, other.words)
        after = self.started is not None and self.started > other.last_seen
        return same and after and self.fate == "well" and other.fate in ("failed", "silent")

    def beside(self, other: ProcessEnd) -> bool:
        """Return whether both processes are programs that trained at the same time."""
        if not (self.program and other.program) or self.step is None or other.step is None:
            return False
        if self.pid == other.pid or self.started is None or other.started is None:
            return False
        both_from = max(self.started, other.started)
        return min(self.last_seen, other.last_seen) - both_from > _BESIDE_SECONDS

    def crash(self, step: int | None, total: int | None = None) -> Crash:
        """Return a `Crash` that describes this end as the crash of the run at a step."""
        return Crash(
            self.rank,
            self.pid,
            self.code,
            step=step,
            total=total,
            by="silence" if self.fate == "silent" else "process",
            time=steady.wall(self.ended_at) if self.ended_at is not None else None,
        )

    @property
    def _in_teardown(self) -> bool:
        """Return whether a signal ended the process after its work was done. Libraries can crash at exit."""
        return self.left is True and self.code is not None and self.code < 0

    @property
    def last_seen(self) -> float:
        """Time of the process's end or last report, or infinity while it runs."""
        if self.up:
            return float("inf")
        return self.ended_at or self.stepped_at or 0.0


class Reached(msgspec.Struct, frozen=True):
    """Progress that a run had made when it ended."""

    step: int | None = None
    total: int | None = None
    at: float | None = None  #: time of the run's last step
    complete: bool = False  #: true if the steps or the output of the run show that it completed

    @property
    def short(self) -> bool:
        """Return whether the run ended before its planned last step."""
        return (
            not self.complete and self.step is not None and self.total is not None and self.step < self.total
        )


def crash_among(ends: Sequence[ProcessEnd], reached: Reached, log_fails: Callable[[], bool]) -> Crash | None:
    """Return the first process that probably made the run fail, or ``None`` if the run succeeded.

    `log_fails` returns whether the log ends in a failure that no further output follows. It is called only if
    the processes do not show how the run ended.
    """
    ends = [end for end in ends if not end.is_ray_worker]
    ranks = last_of_ranks(ends)
    dead = [end for end in ranks if end.fate in ("failed", "silent") and not _excused(end, ranks, reached)]
    if not dead and not any(end.step is not None for end in ranks):
        dead = _dead_programs([end for end in ends if end.rank is None], reached, log_fails)
    if dead:
        return _crash(min(dead, key=lambda end: end.last_seen), reached)
    known = any(end.fate in ("well", "up", "failed") for end in (*ranks, *ends))
    if not known and not reached.complete and log_fails():
        return Crash(step=reached.step, total=_total(reached.step, reached), by="log")
    return None


def failed_beside(ends: Sequence[ProcessEnd]) -> ProcessEnd | None:
    """Return the first program that failed while another of the same rank was training, or ``None``.

    The other program must still be running. Such programs are independent because the processes of one
    training run have different ranks.
    """
    failed = [end for end in ends if end.rank is not None and end.fate == "failed" and not end.is_ray_worker]
    found = [
        end
        for end in failed
        if end.code not in _END_SIGNALS
        and any(other.up and other.rank == end.rank and end.beside(other) for other in ends)
    ]
    return min(found, key=lambda end: end.last_seen, default=None)


def codes_of(ends: Sequence[ProcessEnd]) -> dict[int, int | None]:
    """Return the known exit codes of ranks that failed, in the order in which these ranks ended."""
    seen = [end for end in last_of_ranks(ends) if end.fate == "failed" and not end.is_ray_worker]
    ended = [end for end in seen if end.ended_at is not None and end.code is not None]
    return {
        end.rank: end.code for end in sorted(ended, key=lambda end: end.last_seen) if end.rank is not None
    }


def still_running(ends: Sequence[ProcessEnd]) -> list[SurvivingRank]:
    """Return the ranks whose processes are still running after the command has ended."""
    return [
        SurvivingRank(end.rank, end.pid) for end in last_of_ranks(ends) if end.up and end.rank is not None
    ]


def last_of_ranks(ends: Sequence[ProcessEnd]) -> list[ProcessEnd]:
    """Return the last process of each rank, excluding processes that were retried.

    Processes that completed steps take precedence because a program that runs after the training can have the
    same rank. A successful retry needs no steps, because all steps might have been completed earlier. If a
    script starts several training programs at once, they have the same ranks, and each of them is included.
    """
    last: dict[int, ProcessEnd] = {}
    final = [end for end in ends if not any(other.retried(end) for other in ends)]
    for end in sorted(final, key=lambda each: (each.step is not None, each.last_seen)):
        if end.rank is not None:
            last[end.rank] = end
    beside = [
        end
        for end in final
        if end.rank is not None and end is not last[end.rank] and end.beside(last[end.rank])
    ]
    return [end for rank in sorted(last) for end in (*beside, last[rank]) if end.rank == rank]


def _excused(process: ProcessEnd, others: Sequence[ProcessEnd], reached: Reached) -> bool:
    """Return whether the run might have succeeded although this process ended in this way."""
    stopped = process.code in _END_SIGNALS
    if stopped and any(
        other.fate == "well" and other.last_seen <= process.last_seen
        for other in others
        if other is not process
    ):
        return True  # a script ends its remaining processes after a rank has finished
    if process.is_check and process.ended_at is not None:
        # A script can check the machine with `python -c` and continue if the check fails.
        later = [other for other in others if other.started is not None and other.started >= process.ended_at]
        if any(other.fate == "well" for other in later):
            return True
    return (
        reached.complete and (stopped or process.fate == "silent") and not _before_the_end(process, reached)
    )


def _before_the_end(process: ProcessEnd, reached: Reached) -> bool:
    """Return whether other processes completed steps after this process had ended."""
    known = process.run_step if process.step is None else process.step
    if known is not None and reached.step is not None and known < reached.step - GONE_ON:
        return True
    return (
        process.ended_at is not None
        and reached.at is not None
        and reached.at - process.ended_at > _AFTER_SECONDS
    )


def _dead_programs(
    programs: Sequence[ProcessEnd], reached: Reached, log_fails: Callable[[], bool]
) -> list[ProcessEnd]:
    """If it is unknown which program trained, return the failed programs that could have trained.

    No steps follow the end of the training program. If another program succeeded, it might be the training
    program, unless steps are missing or the log ends in a failure.
    """
    dead = [
        program for program in programs if program.fate == "failed" and not _before_the_end(program, reached)
    ]
    dead = [program for program in dead if not _excused(program, programs, reached)]
    well = any(program.fate == "well" for program in programs)
    if well and (reached.complete or not (reached.short or log_fails())):
        return []
    return dead


def _crash(process: ProcessEnd, reached: Reached) -> Crash:
    # The agent can read the last lines of a process after it detected the end, so `run_step` can be too low.
    steps = [process.step, reached.step, process.run_step]
    if _before_the_end(process, reached):
        steps = [process.step, process.run_step, reached.step]
    step = next((each for each in steps if each is not None), None)
    return process.crash(step, _total(step, reached))


def _total(step: int | None, reached: Reached) -> int | None:
    return reached.total if step is not None and reached.total is not None and step <= reached.total else None


def exit_code_loss(script: str) -> Literal["pipe", "wait", ""]:
    """Return how a shell script loses exit codes: in a pipe, or by a ``wait`` that names no process."""
    if re.search(r"(?<![|>])\|&?(?!\|)", script) and "pipefail" not in script:
        return "pipe"
    return "wait" if re.search(r"(?:^|[\s;&])wait\s*(?:$|[;&)\n])", script) else ""
