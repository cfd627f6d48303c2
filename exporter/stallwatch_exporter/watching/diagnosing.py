"""Diagnose a run while it is watched: schedule the diagnoses and handle internal errors in them."""

from __future__ import annotations

import time
from collections.abc import Callable

from stallwatch_exporter.notices import Guard
from stallwatch_exporter.running.memory import MemoryHeld
from stallwatch_exporter.stacks.reaction import Response
from stallwatch_exporter.watching.incidents import redacted
from stallwatch_exporter.watching.stall import StallState
from stallwatch_rules.diagnosis.exits import FROM_OUTSIDE, SIGKILL
from stallwatch_rules.endings import Crash, Ending, ExitedRank
from stallwatch_rules.judgements.conclusions import SILENT_HANG
from stallwatch_rules.reading import RunReading
from stallwatch_rules.records import Diagnosis
from stallwatch_rules.stacks.concluding import (
    NO_RANK,
    ONE_PROCESS,
    ranks_elsewhere,
    with_advice,
    with_stacks,
)
from stallwatch_rules.stacks.records import StallStacks

DIAGNOSE_SECONDS = 5.0  #: seconds between two diagnoses of a run with new input
_SHARE = 20  # diagnoses use at most 1/20 of the time


class Diagnoser:
    """Diagnose the input that has been read. Keep a minimum interval between two diagnoses."""

    def __init__(
        self,
        reading: RunReading,
        memory: MemoryHeld,
        response: Response,
        guard: Guard,
        clock: Callable[[], float],
    ) -> None:
        self._reading = reading
        self._memory = memory
        self._response = response
        self._guard = guard
        self._clock = clock
        self.stacks: StallStacks | None = None  #: stacks of the ranks in the current stall
        self.left: list[ExitedRank] = []  #: ranks that ended by themselves before other ranks
        self.failed_program: Crash | None = None  #: program that failed while another program continues
        self._launching = False  # true if the launcher has not started any rank yet
        self._at = 0.0
        self._wait = 0.0

    @property
    def ready(self) -> bool:
        """Return whether enough time has passed since the last diagnosis."""
        return self._clock() - self._at >= self._wait

    def diagnose(
        self, now: float, state: StallState | None, ending: Ending | None = None
    ) -> tuple[Diagnosis, bool]:
        """Return two values: the diagnosis, and whether the diagnosis succeeded.

        If the diagnosis failed, the result contains only the main facts, so that an incident is not delayed.
        `state` is the state from the stall watch, or ``None`` if that state could not be read.
        """
        start = time.perf_counter()
        try:
            with self._guard("diagnosing the run"):
                return self._diagnosis(now, state, ending), True
        finally:
            self._at = self._clock()
            self._wait = max(DIAGNOSE_SECONDS, _SHARE * (time.perf_counter() - start))
        stalled = state is not None and state.stalled
        bare = Diagnosis("stalled" if stalled else "no-training-log")
        if ending is not None:
            bare.verdict = "unknown-failure" if ending.failed else "no-training-log"
        bare.notes.append(
            "The diagnosis failed because of an internal error; the log copies are in the run's folder."
        )
        with self._guard("summarizing the progress"):
            bare.progress = self._reading.tracker.summary()
        return bare, False

    def _diagnosis(self, now: float, state: StallState | None, ending: Ending | None) -> Diagnosis:
        waited = None
        if ending is not None and ending.stopped:
            waited = ending.quiet if ending.quiet is not None or state is None else state.seconds
        found = self._reading.diagnose(
            ending,
            now=now,
            threshold=state.threshold if state is not None else None,
            stalled=state is not None and state.stalled,
            waited=waited,
            memory=self._memory.now() if ending is None else ending.memory,
            left=self.left,
            elsewhere=ranks_elsewhere(self.stacks),
            failed_program=self.failed_program,
        )
        if ending is None:
            catalogue = self._reading.catalogue
            kills = catalogue.tagged(SIGKILL) | catalogue.tagged(FROM_OUTSIDE)
            kill = any(finding.rule in kills and finding.harm == "fatal" for finding in found.findings)
            self._memory.killed((found.progress.last_step,) if kill else None)
        if found.primary is not None and found.primary.rule == SILENT_HANG:
            if ending is None and not self._reading.tracker.progressed:
                self._launching = self._response.launching()  # at the end, the launcher's processes are gone
            if self._response.alone():
                found = with_advice(found, ONE_PROCESS)
            elif self._launching and not self._reading.tracker.progressed:
                found = with_advice(found, NO_RANK)
        if self.stacks is not None:
            found = with_stacks(found, self.stacks, self._reading.catalogue)
        return redacted(found)
