"""Forward events and records from the ranks' probes to the `RunReading` and to the alarms."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from stallwatch_exporter.probe.plain import is_replay
from stallwatch_exporter.rings.reader import Record
from stallwatch_exporter.watching.alarms import ENDING_SECONDS
from stallwatch_exporter.watching.checkpoints import CheckpointWatch
from stallwatch_exporter.watching.lost_ranks import NO_RANKS, Processes, RankExits
from stallwatch_exporter.watching.probe_events import (
    Invalidations,
    ProbeExceptions,
    after_a_failure,
    before_it_fails,
    concern_match,
    versions_in,
)
from stallwatch_rules.endings import GONE_ON, Ending
from stallwatch_rules.judgements.concerns import CHECKPOINT, NAN_LOSSES, SEEN, SLOW_RANKS, evidence_of
from stallwatch_rules.judgements.conclusions import LOSS_NAN, STRAGGLER
from stallwatch_rules.judgements.nan_losses import SEVERAL, NanLosses
from stallwatch_rules.judgements.slow_hosts import RankStep, SlowHosts
from stallwatch_rules.reading import RunReading
from stallwatch_rules.records import EVALUATION, Line, Match, Sample
from stallwatch_rules.stream import NO_CODES, SOURCE

NO_PROBE = (
    "no rank has a probe, so only the log of this run is watched. No process that the command started on this"
    " host imports torch together with the probe. Possible reasons are python -E, -I, or -S, a separate"
    " environment (sudo or a container), or ranks that run only on other hosts"
)
_LEAST_COST = 0.2  # Minimum loss of throughput, as a fraction. Logging and printing slow a rank down.
_LEAST_SECONDS = 0.05  # Minimum loss per step. Printing a line takes a large share of a very short step.
#: Seconds to wait for a ring after the first logged step. Probes create rings before the first step.
WAIT_SECONDS = 15.0


class ProbeIntake:
    """Process the events and then the records from the ranks' probes.

    `warned` receives each new warning. `on_repaired` receives the rule of each fixed fault.
    """

    def __init__(
        self,
        reading: RunReading,
        warned: Callable[[Match], None],
        notice: Callable[[str], None] = lambda _: None,
        on_repaired: Callable[[str], None] = lambda _: None,
        host: str = "",
        command: Sequence[str] = (),
    ) -> None:
        self._reading = reading
        self._host = host
        self._warned = warned
        self._on_repaired = on_repaired
        self._invalidations = Invalidations()
        self._nan_losses = NanLosses()
        self.slow_ranks = SlowHosts(_LEAST_COST, _LEAST_SECONDS)
        #: Callback that receives the rank, the step, and the times of the step.
        self.paced: Callable[[int, int, RankStep], None] = lambda *_: None
        self._logged: dict[Hashable, int | None] = {}  # last step with a loss, by rank and series
        #: Number of the last record with a loss, and the count of skipped steps in this record, by rank.
        self._losses_until: dict[int, tuple[int, float]] = {}
        self._exceptions = ProbeExceptions()
        self._checkpoints = CheckpointWatch()
        self.exits = RankExits()
        self._notice = notice
        self._unprobed_since: float | None = None  # time of the first logged step while no rank has a ring
        self._probe_known = is_replay(command)  # true if a probe was found or is known to be missing
        self._versions: dict[int, dict[str, str]] = {}  # package versions by rank
        self._number = 0
        self._failed_at: float | None = None  # time at which a rank last failed or reported a failure
        self._up: set[int] = set()  # ranks with a running process
        self._gone: set[int] = set()  # ranks whose process has ended
        self._paced_at: dict[int, int] = {}  # last step whose times were processed, by rank

    def events(self, events: Sequence[Mapping[str, Any]], now: float) -> None:
        """Process the events since the last call, in their order in ``events.jsonl``."""
        for event in events:
            self._number += 1
            kind = event.get("kind")
            if kind == "exception" or (kind == "left" and event.get("error")):
                self._failed_at = now
            if kind == "concern":
                match = concern_match(event, self._number)
                self._report([match] if match is not None else [])
            elif kind == "trace-cache":
                self._invalidations.named(event, self._number)
            elif kind == "exception":
                self._exceptions.take(event, self._number, now)
                self._report(after_a_failure(self._versions_of(event), event, self._number))
            elif kind == "left":
                self.exits.take(event)
            elif kind == "checkpoint":
                self._checkpoints.take(event, self._number, now)
            elif kind == "versions":
                self._imported(event)
            elif kind == "training" and event.get("rank") == min(self._up, default=event.get("rank")):
                self._reading.tracker.forget_paces()
            elif kind == "trainer":
                self._report(before_it_fails(self._versions_of(event), event, self._number))

    def record(self, record: Record, sample: Sample | None) -> bool:
        """Process a record and its step. Return whether the record contains new information."""
        invalidated = self._invalidations.counted(record)
        self.exits.record(record)
        if invalidated is not None:
            self._reading.take_report(*invalidated)
        if sample is not None:
            self._reading.step(sample, SOURCE)
        self._own_time_of(record)
        return self._loss_of(record) or invalidated is not None

    def _loss_of(self, record: Record) -> bool:
        """Check the loss in a record of an optimizer step. Return whether NaN losses began or ended."""
        loss, skipped = record.values.get("loss"), record.values.get("skipped_steps", 0.0)
        number, skipped_before = self._losses_until.get(record.rank, (-1, skipped))
        if loss is None or record.number == number:  # a pending record is read again when it is complete
            return False
        self._losses_until[record.rank] = record.number, skipped
        if skipped > skipped_before:
            return False
        return self._loss((record.rank, SOURCE), loss, record.rank, record.time)

    def _own_time_of(self, record: Record) -> None:
        """Compare the ranks' own working times in a step to find a rank that slows other ranks down."""
        values = record.values
        if not {"step", "own_seconds", "step_seconds"} <= values.keys():
            return
        step = int(values["step"])
        if self._paced_at.get(record.rank) == step:  # a pending record is read again when it is complete
            return
        self._paced_at[record.rank] = step
        times = RankStep(values["own_seconds"], values["step_seconds"], values.get("tokens", 0.0))
        self.paced(record.rank, step, times)
        before = self.slow_ranks.slow
        # Remove ended ranks only while other ranks continue, so that an ended run keeps its findings.
        while self._gone:
            self.slow_ranks.leave(str(self._gone.pop()))
        self.slow_ranks.see(str(record.rank), record.rank, step, times)  # ranks are compared like hosts
        slow = self.slow_ranks.slow
        if slow == before:
            return
        for seen in SLOW_RANKS:
            self._reading.withdraw(STRAGGLER, SEEN, seen)
        if slow is not None:
            sizes = {"share": f"{slow.share:.0%}", "cost": f"{slow.cost:.0%}", "count": str(slow.steps)}
            captures = {SEEN: f"{slow.kind}-rank", "rank": str(slow.rank), "host": self._host, **sizes}
            line = Line(evidence_of(captures), SOURCE, self._number, slow.rank, record.time)
            self._report([Match(STRAGGLER, line, captures, step)])

    def logged(self, samples: Iterable[Sample]) -> None:
        """Check the losses in the samples of log lines."""
        for sample in samples:
            loss = sample.values.get("loss")
            counter = (sample.rank, sample.series)
            if loss is None or sample.series in ("", EVALUATION) or sample.from_bar:
                continue  # progress bars repeat the loss
            # Several ranks can log the same step.
            if sample.step is None or self._logged.get(counter) != sample.step:
                self._logged[counter] = sample.step
                self._loss(counter, loss, sample.rank, sample.time)

    def _loss(self, counter: Hashable, loss: float, rank: int | None, time: float | None) -> bool:
        news = self._nan_losses.see(counter, loss)
        if news == "began":
            captures = {SEEN: NAN_LOSSES, "value": f"{loss:g}", "count": str(SEVERAL)}
            line = Line(evidence_of(captures), SOURCE, self._number, rank, time)
            self._report([Match(LOSS_NAN, line, captures, self._reading.tracker.last_step)])
        elif news:
            self._reading.withdraw(LOSS_NAN, SEEN, NAN_LOSSES)
        return bool(news)

    def update_ranks(
        self,
        up: Processes,
        now: float,
        codes: Mapping[int, int] = NO_CODES,
        unprobed: Processes = NO_RANKS,
    ) -> None:
        """Record which ranks are running, and when a rank last ended unsuccessfully."""
        self._notice_missing_probe(now, probed=bool(up))
        self.exits.look(up, now, codes, unprobed)
        before, self._up = self._up, {rank for rank, rings in {**unprobed, **up}.items() if rings}
        well = {*self.exits.well, *(rank for rank, code in codes.items() if code == 0)}
        if before - self._up - well:
            self._failed_at = now
        self._gone = (self._gone | before) - self._up

    def _notice_missing_probe(self, now: float, *, probed: bool) -> None:
        """If the log has shown steps for a while and no rank has a probe, notify the user once."""
        self._probe_known = self._probe_known or probed
        if self._probe_known or not self._reading.tracker.last_step:
            return
        if self._unprobed_since is None:
            self._unprobed_since = now
        if now - self._unprobed_since >= WAIT_SECONDS:
            self._probe_known = True
            self._notice(NO_PROBE)

    def is_ending(self, now: float) -> bool:
        """Return whether a rank has failed recently, because most launchers then end the other ranks."""
        return self._failed_at is not None and now - self._failed_at < ENDING_SECONDS

    def judged(self, ending: Ending) -> Ending:
        """Add the ranks that ended before the command to the command's ending. Return the ending."""
        left = self.exits.left
        if ending.kind == "finished":  # ranks normally end at slightly different times
            left = [rank for rank in left if rank.behind >= GONE_ON]
        return msgspec.structs.replace(ending, left=left) if left else ending

    def look(self, now: float, pids: Collection[int] = (), *, ended: bool = False) -> None:
        """Check the announced checkpoints. `pids` identifies the processes that can still write them."""
        self._report(self._checkpoints.finish(now) if ended else self._checkpoints.look(now, pids))
        for rule in self._checkpoints.take_repaired():
            self._reading.withdraw(rule, SEEN, CHECKPOINT)
            self._on_repaired(rule)
        self._checkpoints.raise_error()

    def unlogged_lines(self, now: float, *, everything: bool = False) -> list[Line]:
        """Return log lines for the exceptions that the log does not show."""
        return self._exceptions.unlogged_lines(self._reading.streams, now, everything=everything)

    def _report(self, matches: Iterable[Match]) -> None:
        """Report the matches for warnings, but only if the rules are in the catalogue."""
        for match in matches:
            if match.rule in self._reading.catalogue.pages:
                self._reading.take_report(match)
                self._warned(match)

    def _imported(self, event: Mapping[str, Any]) -> None:
        found = versions_in(event)
        rank = event.get("rank")
        if isinstance(rank, int):
            self._versions[rank] = found
            self._reading.environment(found, SOURCE, rank)

    def _versions_of(self, event: Mapping[str, Any]) -> dict[str, str]:
        rank = event.get("rank")
        return self._versions.get(rank, {}) if isinstance(rank, int) else {}
