"""Combine all evidence of how a run ended, and derive one ending from it."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

from msgspec.structs import replace

from stallwatch_exporter.notices import Guard
from stallwatch_exporter.rings.probing import Probing
from stallwatch_exporter.running.crashes import (
    ProcessEnd,
    Reached,
    codes_of,
    crash_among,
    exit_code_loss,
    failed_beside,
    last_of_ranks,
    still_running,
)
from stallwatch_exporter.running.ending import crash_sentence, running_sentence, signal_of
from stallwatch_exporter.running.memory import MemoryHeld
from stallwatch_exporter.running.programs import Program, Programs
from stallwatch_exporter.runs.runfolder import RunFolder
from stallwatch_exporter.watching.incidents import redacted
from stallwatch_rules.endings import Crash, Ending, MemoryUse
from stallwatch_rules.locale import render
from stallwatch_rules.messages import sentences
from stallwatch_rules.progress.tracker import ProgressTracker
from stallwatch_rules.reading import RunReading
from stallwatch_rules.records import Diagnosis
from stallwatch_rules.report.phrases import exception_in_short

_PATIENCE = 1.0  # seconds to wait for the ranks to end after the command
_LOOK_SECONDS = 0.9  # minimum number of seconds between two checks of the processes
# Initial interval between two checks, and the time for which this interval applies, in seconds.
_QUICK_SECONDS, _STARTING_SECONDS = 0.2, 10.0
_DIED = ("failed", "killed", "oom-killed")
_ERROR = 100  # maximum number of characters of an error message

Diagnose = Callable[[Ending], tuple[Diagnosis, bool]]  # returns the diagnosis, and whether diagnosing worked


class EndEvidence:
    """Collect evidence of how a run ended.

    Set `programs.command`, call ``look`` at least once a second while the command runs, and then call
    ``ending``.
    """

    def __init__(
        self,
        folder: RunFolder,
        reading: RunReading,
        memory: MemoryHeld,
        last_lines: Sequence[str],
        guard: Guard,
    ) -> None:
        self.programs = Programs(folder.info.command)
        self._reading = reading
        self._memory = memory
        self._last_lines = last_lines
        self._guarded = guard
        self.ranks_up: dict[int, frozenset[Path]] = {}  #: running processes by rank, at the last check
        self._looked_at = -math.inf
        self._began: float | None = None  # time of the first check
        self._run_steps: dict[Program, int | None] = {}  # last step of the run when each program ended

    def look(self, now: float) -> None:
        """Find programs of the command that have started or ended since the last check."""
        if self._began is None:
            self._began = now
        if now - self._looked_at < (_QUICK_SECONDS if self._starts(now) else _LOOK_SECONDS):
            return
        self._looked_at = now
        self.programs.look()
        self.ranks_up = self._up()
        for program in self.programs.known.values():
            if program in self.programs.exits.ended_at and program not in self._run_steps:
                self._run_steps[program] = self._reading.tracker.last_step

    def due_in(self, now: float) -> float:
        """Return the time until the next check in seconds, or infinity if a check every second is enough.

        Exit codes of processes that run only between two checks remain unknown.
        """
        return max(0.0, self._looked_at + _QUICK_SECONDS - now) if self._starts(now) else math.inf

    def _starts(self, now: float) -> bool:
        return self._began is not None and now - self._began < _STARTING_SECONDS

    def _up(self) -> dict[int, frozenset[Path]]:
        """Return each rank's running processes, or an empty set for a rank that is known to have failed."""
        up: dict[int, frozenset[Path]] = {}
        codes = self.exit_codes
        for program in self.programs.known.values():
            if program.rank is not None and self.programs.is_up(program):
                up[program.rank] = up.get(program.rank, frozenset()) | {Path(str(program.pid))}
        return {rank: frozenset() for rank, code in codes.items() if code} | up

    def failed_program(self, probing: Probing | None) -> Crash | None:
        """Return the crash of a program if another program of the command continues, or ``None``."""
        if len(self.programs.known) < 2:
            return None
        failed = failed_beside(self._ends(probing, None))
        return failed.crash(failed.step) if failed is not None else None

    @property
    def exit_codes(self) -> dict[int, int]:
        """Exit codes (``-n`` for signal n) of the ranks that a launcher or script numbered."""
        codes = self.programs.exits.codes
        known = self.programs.known.values()
        return {each.rank: codes[each] for each in known if each.rank is not None and each in codes}

    def with_memory(self, ending: Ending) -> Ending:
        """If a process was killed, add the known memory use to the ending. Return the ending."""
        with self._guarded("finding the memory use of the processes"):
            return self._memory.with_memory(ending, list(self._last_lines), os.environ)
        return ending

    def ending(
        self, command: Ending, probing: Probing | None, diagnose: Diagnose, read_reports: Callable[[], None]
    ) -> tuple[Ending, Diagnosis]:
        """Return the ending of the run, and the diagnosis that agrees with this ending.

        `command` is the ending of the command itself. `read_reports` reads the last reports of the ranks.
        Call this method last because it closes the rings of `probing`.
        """
        ends: list[ProcessEnd] = []
        with self._guarded("finding how the processes ended"):
            ends = self._settled(probing, command.exit_code, read_reports)
            self.programs.close()
            if probing is not None:
                probing.close()
        with self._guarded("finding how the run ended"):
            return self._judged(command, ends, diagnose)
        return command, diagnose(command)[0]

    def _ends(self, probing: Probing | None, exit_code: int | None) -> list[ProcessEnd]:
        rings = probing.ends() if probing is not None else []
        exits = self.programs.exits
        ends = []
        for program in self.programs.known.values():
            own = ProcessEnd(
                program.pid,
                program.rank,
                self.programs.is_up(program),
                exits.codes.get(program, exit_code if program.pid == self.programs.command else None),
                exits.ended_at.get(program),
                run_step=self._run_steps.get(program),
                started=program.seen,
                words=program.words,
                program=True,
            )
            own_rings = [ring for ring in rings if ring.pid == program.pid]
            ends += [_combined(own, ring) for ring in own_rings] or [own]
        known = {program.pid for program in self.programs.known.values()}
        return [*ends, *(ring for ring in rings if ring.rank is not None and ring.pid not in known)]

    def _judged(
        self, command: Ending, ends: Sequence[ProcessEnd], diagnose: Diagnose
    ) -> tuple[Ending, Diagnosis]:
        if running := still_running(ends):
            detail = sentences(command.detail, running_sentence(running))
            command = replace(command, running=running, detail=detail)
        if command.kind in _DIED:
            command = self.with_memory(replace(command, codes=codes_of(ends)))
        if command.kind != "finished":
            return command, diagnose(command)[0]
        tracker = self._reading.tracker
        reached = Reached(
            tracker.last_step, tracker.total_steps, tracker.last_progress_time, tracker.shows_finish
        )
        crash = crash_among(ends, reached, self._log_fails)
        if crash is None:
            found, _ = diagnose(command)
            if not _died(found):
                return command, found
            crash = Crash(step=tracker.last_step, total=tracker.total_steps, by=_seen_in(tracker))
        crash = replace(crash, hidden=exit_code_loss(self.programs.script))
        counted = self._memory.counted()
        found, _ = diagnose(self.with_memory(_failed(command, crash, counted)))
        crash = replace(crash, error=_error(found))
        ending = self.with_memory(_failed(command, crash, counted))
        return ending, replace(found, ending=redacted(ending).detail)

    def _log_fails(self) -> bool:
        """Return whether the log ends in a failure, other than a failed start that the command survived."""
        found = self._reading.diagnose()
        starts = self._reading.catalogue.tagged("start-failed")
        return _died(found) and not (found.primary is not None and found.primary.rule in starts)

    def _settled(
        self, probing: Probing | None, exit_code: int | None, read_reports: Callable[[], None]
    ) -> list[ProcessEnd]:
        """Wait briefly for the ranks to end after the command. Return the endings of the processes."""
        deadline = time.monotonic() + _PATIENCE
        while True:
            up = any(process.up for process in last_of_ranks(self._ends(probing, exit_code)))
            read_reports()  # read after the check, so that the last reports of ended ranks are complete
            if not up or time.monotonic() > deadline:
                return self._ends(probing, exit_code)
            time.sleep(_PATIENCE / 20)


def _died(found: Diagnosis) -> bool:
    return found.in_trouble and found.verdict != "stalled"


def _combined(own: ProcessEnd, reported: ProcessEnd) -> ProcessEnd:
    """Merge the agent's observations of a program with the reports from the program's probe."""
    return replace(
        reported,
        rank=own.rank if reported.rank is None else reported.rank,
        code=own.code if reported.code is None else reported.code,
        ended_at=own.ended_at or reported.ended_at,
        run_step=own.run_step,
        words=own.words,
        program=own.program,
    )


def _seen_in(tracker: ProgressTracker) -> Literal["loss", "log"]:
    """Return the evidence of a failure that no exit code shows: a NaN loss, or the log."""
    return "loss" if tracker.last_loss is not None and math.isnan(tracker.last_loss) else "log"


def _failed(command: Ending, crash: Crash, counted: bool | None) -> Ending:
    """Return the ending of a run that failed although the command exited with 0."""
    ended_by = signal_of(crash.code) if crash.code is not None else None
    killed = ended_by is not None or crash.by == "silence"
    may_be_memory = crash.by == "silence" or (ended_by is not None and ended_by.name == "SIGKILL")
    return replace(
        command,
        kind="oom-killed" if may_be_memory and counted else "killed" if killed else "failed",
        signal=ended_by.name if ended_by is not None else None,
        detail=sentences(crash_sentence(crash), running_sentence(command.running)),
        crash=crash,
        memory=MemoryUse(counted=counted) if killed and counted is not None else None,
    )


def _error(found: Diagnosis) -> str:
    """Return the message that the run itself printed about its failure."""
    if found.primary is None:
        return exception_in_short(found.unknown[0], _ERROR) if found.unknown else ""
    first = render(found.primary.evidence[0]) if found.primary.evidence and found.primary.line else ""
    return first if len(first) <= _ERROR else first[: _ERROR - 1] + "…"
