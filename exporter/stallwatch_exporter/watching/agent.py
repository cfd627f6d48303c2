"""Agent for one run, which reads log lines and produces metrics, log copies, and incidents.

The agent has no thread and no clock of its own. Instead, ``feed`` receives bytes, and ``tick`` receives the
time. Errors in the agent do not affect the caller (see ``guard``).
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Sequence

from stallwatch_exporter import steady
from stallwatch_exporter.cluster.joining import Joining
from stallwatch_exporter.cluster.member import State as ClusterState
from stallwatch_exporter.incident import Severity, Sink
from stallwatch_exporter.notices import Guard, surviving
from stallwatch_exporter.rings.probing import Probing
from stallwatch_exporter.running.capture import Chunk
from stallwatch_exporter.running.end_evidence import EndEvidence
from stallwatch_exporter.running.memory import MemoryHeld
from stallwatch_exporter.runs.copies import Gap, RankCopies
from stallwatch_exporter.runs.runfolder import RunFolder, State
from stallwatch_exporter.serving.metrics import RunMetrics
from stallwatch_exporter.settings import ExporterSettings
from stallwatch_exporter.stacks.processes import require_descriptors
from stallwatch_exporter.stacks.reaction import Response
from stallwatch_exporter.watching.alarms import Alarms
from stallwatch_exporter.watching.diagnosing import Diagnoser
from stallwatch_exporter.watching.incidents import Heartbeat, Reporting, redacted
from stallwatch_exporter.watching.log_activity import MovingBars, MovingLines, Repeats
from stallwatch_exporter.watching.probe_intake import ProbeIntake
from stallwatch_exporter.watching.progress import Advance, HookedProgress
from stallwatch_exporter.watching.readers import Readers
from stallwatch_exporter.watching.stall import StallState, StallWatch
from stallwatch_exporter.watching.suspicion import Suspicion
from stallwatch_rules.endings import Ending
from stallwatch_rules.judgements.slow_hosts import RankStep
from stallwatch_rules.judgements.step_time import stay_slow
from stallwatch_rules.lines.ranks import local_ranks
from stallwatch_rules.messages import message
from stallwatch_rules.pages.catalogue import Catalogue
from stallwatch_rules.reading import RunReading
from stallwatch_rules.records import Diagnosis, Line, Match, Stats
from stallwatch_rules.stacks.quiet_periods import CRITICAL, FOREVER
from stallwatch_rules.stacks.records import StallStacks
from stallwatch_rules.stacks.spans import spans_of
from stallwatch_rules.text.redact import redact

_IDLE_SECONDS = 0.5  #: seconds after which a progress bar that has not been redrawn is read as is
_QUIET_SECONDS = 30.0  #: seconds without a line after which an unknown exception counts as the end of the log
_LAST_LINES = 200
_SHOWN_LINES = 3
_WRITTEN_SECONDS = 5.0  #: seconds after which agent.json is rewritten; a changed state is written immediately


class Agent:
    """Watcher of one run, which evaluates the output that it receives, the ranks' reports, and the time."""

    def __init__(
        self,
        folder: RunFolder,
        settings: ExporterSettings,
        catalogue: Catalogue,
        sinks: Sequence[Sink] = (),
        *,
        clock: Callable[[], float] = steady.now,
        notice: Callable[[str], None] = lambda _: None,
        probing: Probing | None = None,
        joining: Joining | None = None,
        metrics: RunMetrics | None = None,
    ) -> None:
        """Set up the agent. If `joining` is given, its member receives the incidents instead of `sinks`."""
        self._joining = joining
        self.member = member = joining.member if joining is not None else None
        sinks = sinks if member is None else (member,)
        self.folder = folder
        self.metrics = metrics or RunMetrics(folder.run)
        self.last_lines: deque[str] = deque(maxlen=_LAST_LINES)
        self.memory = MemoryHeld()
        self._settings = settings
        self._heartbeat = Heartbeat(tuple(sinks))
        self._clock = clock
        notice = surviving(notice)
        self._guarded = Guard(notice)
        self._reading = RunReading(catalogue)
        self._reading.tracker = self._progress = HookedProgress()
        self._probing = probing
        self.end_evidence = EndEvidence(folder, self._reading, self.memory, self.last_lines, self._guarded)
        self.ending = Ending("unknown", None)  #: ending of the run, derived from all evidence
        self._readers = Readers()
        self._watch = StallWatch(settings, folder.info.started_at)
        self.advance = Advance(self._progress, self._watch, self.metrics)
        self._reporting = Reporting(folder, self.metrics, sinks, self._guarded)
        self._book = self._reporting.book
        self._alarms = Alarms(self._book, catalogue)
        self._alarms.steps_stay_slow = lambda: stay_slow(self._progress.step_seconds())
        self._intake = ProbeIntake(
            self._reading,
            self._warned,
            notice,
            self._alarms.checkpoints.discard,
            folder.info.host,
            folder.info.command,
        )
        self.response = Response(folder, settings.on_stall, probing, notice, settings.language)
        self._diagnoser = Diagnoser(self._reading, self.memory, self.response, self._guarded, clock)
        self._suspicion = Suspicion(settings, self._watch, self.response.evidence)
        self._suspicion.run_ruling = lambda: self.member.ruling if self.member is not None else None
        self._intake.paced = self._paced
        self._repeats = Repeats(catalogue)
        self._moving, self._bars = MovingLines(), MovingBars()
        self._copies = RankCopies(folder.path, redact, notice, settings.keep_gb * 1e9)
        self._ranks: set[int] = set()  # ranks that run on this host
        self._first_rank: int | None = None  # the lowest rank on this host, if known
        self._news = False  # true if input has arrived since the last diagnosis
        self._line_at: float | None = None  # time of the last line, or None after the pause was evaluated
        self._stall: StallState | None = None  # state of the current stall at the last check, if any
        self._stop_requested = False
        self._last_stacks: StallStacks | None = None  # stacks of the quiet ranks when a stop was requested
        self._responded = False  # true if the user's action for this stall was started
        self._looked_at = 0.0
        self._size = Stats()
        self._dropped = 0
        self._unread = 0
        self._skipped: set[str] = set()  # sources whose next bytes follow bytes that were not read
        self._fed_at = folder.info.started_at
        self.metrics.thresholds(self._watch.thresholds)
        self.metrics.progressed(self._watch.last_sign)
        self.metrics.identity(folder.info, {})

    @property
    def now(self) -> float:
        """Current time, according to the clock that measures the run."""
        return self._clock()

    @property
    def stall_state(self) -> StallState:
        """Current state of the stall watch."""
        return self._watch.check(self.now, begin=False)

    @property
    def errors(self) -> int:
        """Number of errors that have occurred in the agent or a sink."""
        return self._guarded.errors

    # ---- lines

    def feed(self, *chunks: Chunk) -> None:
        """Read chunks of output that were printed at about the same time."""
        lines: list[Line] = []
        for chunk in chunks:
            self._keep(chunk)
            with self._guarded("reading the log"):
                data, fresh = chunk.data, chunk.fresh
                if chunk.source in self._skipped:
                    self._skipped.remove(chunk.source)
                    data, fresh = data.partition(b"\n")[2] or data, True  # the first line can be incomplete
                lines += self._readers.lines(chunk.source, data, chunk.time, chunk.rank, fresh=fresh)
        with self._guarded("reading the log"):
            self._take(lines, sum(len(chunk.data) for chunk in chunks), chunks[-1].time)

    def copy(self, chunk: Chunk) -> int:
        """Write an unread chunk to the log copies. Return the number of lines in the chunk."""
        self._keep(chunk)
        self._skipped.add(chunk.source)
        self._unread += (lines := chunk.data.count(b"\n"))
        return lines

    def _keep(self, chunk: Chunk) -> None:
        with self._guarded("writing the log copies"):
            self._copies.write(
                chunk.source,
                chunk.stream,
                chunk.data,
                chunk.time,
                chunk.rank,
                fresh=chunk.fresh,
                lost=chunk.lost,
            )

    def history(
        self, source: str, data: bytes, rank: int | None, *, counted: bool, shift: float = 0.0
    ) -> None:
        """Read output that was printed before the agent started. Shift its timestamps by `shift` seconds."""
        with self._guarded("reading the log"):
            self._take(self._readers.past(source, data, rank, shift), len(data), None, counted=counted)

    def history_ends(self, last_sign: float) -> Diagnosis:
        """Conclude the history, whose last sign of life was at `last_sign`. Return the diagnosis so far."""
        with self._guarded("reading the log"):
            for bar in self._readers.idle(last_sign):
                self._take(bar, 0, None)
        last_sign = min(last_sign, self.now)  # a file server's clock can be ahead
        with self._guarded("taking over the run"):
            self.advance.history(last_sign)
            found, _ = self._diagnosis(last_sign)
            self._alarms.mark_known(found)
            return found
        return Diagnosis("no-training-log")

    def _take(
        self, lines: list[Line], size: int, now: float | None, *, counted: bool = True, progress: bool = True
    ) -> None:
        self._size.bytes += size
        self._size.lines += len(lines)
        if counted:
            self.metrics.read(len(lines), size)
        if not lines:
            return
        self._progress.reported_at = self._progress.reported_at if now is None else now
        seen = self._reading.feed(lines)
        self.last_lines.extend(line.text for line in lines[-_LAST_LINES:])
        for sample in seen.samples:
            self.metrics.sample(sample)
        if counted:
            for match in seen.matches:
                self.metrics.match(match)
            for line in seen.warnings:
                self.metrics.warning(line.rank)
        if now is not None:
            self._line_at = now
            progressed = progress and self.advance.seen(now)
            if progressed or not self._unread:
                self._fed_at = now
            self._intake.logged(seen.samples)
            self._alarms.matched(seen.matches, now)
            self._repeats.add(seen.matches, progressed=progressed)
            bar_moved = self._bars.add(lines)
            if progressed:
                self._moving.stepped(now)
            elif bar_moved:
                self._progress.active_at = now
                self.advance.seen(now)
            elif not self._watch.sighted:
                known = {match.line.number for match in seen.matches}
                if self._moving.add((line for line in lines if line.number not in known), now):
                    self._progress.active_at = now
                    self.advance.seen(now)
            self._news = self._news or progressed or bool(seen.matches)

    def _read_ranks(self, now: float, *, everything: bool = False) -> None:
        """Read the events and records that the ranks wrote since the last tick."""
        if self._probing is None:
            return
        # Read the events before the records because the records only count invalidations, and the events
        # name the modules.
        events = list(self._probing.events())
        for event in events:
            self.folder.append_event(event)
        self._intake.events(events, now)
        for record in self._probing.read():
            self.metrics.hooked(record)
            self.memory.rank(record.rank, record.values)
            self._news = self._intake.record(record, self._progress.hooked(record)) or self._news
            progressed = self.advance.seen(record.time)
            self._news = progressed or self._news
            self._repeats.add((), progressed=progressed)
            if progressed:
                self._moving.stepped(record.time)
        up = self._probing.ranks_up()
        running = {rank for rank, rings in up.items() if rings}
        if not running <= self._ranks:  # a new rank has started
            self._ranks, self._first_rank = running, self._probing.first_rank()
            self._readers.local_ranks = local_ranks(running, self._first_rank)
        self.metrics.ranks(up)
        others, codes = self.end_evidence.ranks_up, self.end_evidence.exit_codes | self._probing.exit_codes()
        self._intake.update_ranks(up, now, codes, others)
        self._diagnoser.left = self._intake.exits.left
        # A stall continues even after its ranks have ended.
        if self._probing.just_left() and self._stall is None:
            self._progress.ended(now)
            self.advance.seen(now)
        missing = self._intake.unlogged_lines(now, everything=everything)
        self._take(missing, 0, now, counted=False, progress=False)

    # ---- time

    def tick(self, now: float | None = None, *, read_until: float | None = None) -> None:
        """Update the run's state. Call this method about once a second, even if there are no new lines.

        While lines are unread, `read_until` is the time of the last line that ``feed`` received. The run is
        evaluated as of that time because the agent has not read the later lines yet.
        """
        now = self._clock() if now is None else now
        present = now if read_until is None else read_until
        with self._guarded("writing the log copies"):
            self._copies.flush(present)
        with self._guarded("reading the log"):
            for bar in self._readers.idle(present - _IDLE_SECONDS):
                self._take(bar, 0, bar[-1].time if bar else None)
        with self._guarded("reading the probe's records"):
            self.end_evidence.look(now)
            self._read_ranks(now)
            self._diagnoser.failed_program = self.end_evidence.failed_program(self._probing)
        with self._guarded("joining the other hosts"):
            self._join()
        with self._guarded("checking the checkpoints"):
            self._intake.look(now, self._probing.pids() if self._probing is not None else ())
        with self._guarded("watching the run"):
            self._alarms.ending = self._intake.is_ending(now)
            self._alarms.ranks_compared = self._intake.slow_ranks.compares
            self._suspicion.look(
                present, progressed=self._reading.tracker.progressed, repeating=self._repeats.now
            )
            self._look(present, now)
            gone, held = self._intake.exits.gone, self._stall is not None or self._alarms.ending
            self._alarms.ranks.look(gone, self._progress, now, held=held, memory=self.memory.now)
        with self._guarded("updating the incidents"):
            self._reporting.episodes.flush()
        with self._guarded("reporting to the other hosts"):
            self._report_state(present)
        with self._guarded("updating the metrics"):
            self.metrics.thresholds(self._watch.thresholds)
            self.metrics.progressed(self._watch.last_sign)
            self.metrics.dropped(self._dropped + self._unread + self._lost())
        with self._guarded("writing the run's record"):
            self._write_info(now)
        with self._guarded("checking the ranks"):
            require_descriptors()
        with self._guarded("sending the heartbeat"):
            self._heartbeat.beat(self.errors, self._dropped + self._unread)

    def due_in(self) -> float:
        """Return the time until the next tick, in seconds, or infinity if earlier input requires no tick."""
        if self.response.evidence.under_way:  # process the result of the snapshot immediately
            return 0.0
        now = self._clock()
        return min(self._alarms.due_in(now), self.end_evidence.due_in(now))

    def paused(self, seconds: float) -> None:
        """Exclude the seconds for which the agent was suspended (by Control+Z or with the whole machine)."""
        self._watch.pause(seconds)

    def stop_requested(self, now: float) -> None:
        """Handle a request to end the command. Save the stacks of quiet ranks before the stacks change."""
        if not self._stop_requested:
            self._stop_requested, self._last_stacks = True, self._suspicion.stacks_now
        self.advance.stop_requested(now)

    def dropped(self, total: int) -> None:
        """Record the total number of lines that have been passed on without being read."""
        self._dropped = total

    def _look(self, now: float, clock: float) -> None:
        state, continues = self._check_stall(now)
        if state.stalled:
            since = self._looked_at if continues else state.since + state.threshold
            self.metrics.stalled(max(0.0, now - since))
        self._looked_at = now
        self.metrics.stalled_now(state.stalled)
        if not state.stalled:
            self._alarms.stepped(self._reading.tracker.last_step, now)
        begins = state.stalled and not continues
        located = state.stalled and self._suspicion.stacks is not None and self._diagnoser.stacks is None
        line_at = min(self._line_at or now, clock)
        falls_silent = self._line_at is not None and now - line_at >= _QUIET_SECONDS
        if (
            begins
            or located
            or falls_silent
            or self._alarms.due_in(max(now, line_at)) <= 0
            or (self._diagnoser.ready and (self._news or state.stalled))
        ):
            if state.stalled:
                self._diagnoser.stacks = self._suspicion.stacks or self._diagnoser.stacks
            diagnosis, sure = self._diagnosis(now)
            if state.stalled:  # call this first, so that the cause of the stall is reported only once
                self._alarms.stalled(
                    state, diagnosis, self._shown_lines(), now, self._diagnoser.stacks, self._severity(state)
                )
                self._respond(begins=begins)
            self._alarms.open_due_incidents(diagnosis, max(now, line_at))
            if sure:
                self._alarms.judged(diagnosis, now)
            if falls_silent:
                self._line_at = None
                self._alarms.open_silence_incident(diagnosis, now)

    def _severity(self, state: StallState) -> Severity:
        """Return "warning" if the ranks are computing and the stall is short, or "critical" otherwise."""
        ruling = self._suspicion.ruling
        busy = ruling is not None and ruling.status == "busy"
        calm = state.seconds < CRITICAL * self._settings.stall_floor_seconds
        return "warning" if busy and calm else "critical"

    def _respond(self, *, begins: bool) -> None:
        """Start the user's `on_stall` action when the stall is critical and the stacks are collected."""
        if begins:
            self._responded = False
            self.response.explain(self._suspicion.unanswered)
        if self._responded or self.response.evidence.under_way:
            return
        for stall in self._book.of_kind("stall"):
            if stall.severity == "critical":
                self._responded = True
                self.response.react(self._reporting.episodes.incident_of(stall))

    def _check_stall(self, now: float) -> tuple[StallState, bool]:
        """Return two values: the state of the stall, and whether the last check had already found this stall.

        If the last known stall has ended, report the recovery.
        """
        waits = self._suspicion.pending(now) and self._stall is None
        state, before = self._watch.check(now, begin=not waits), self._stall
        # A stall that ended and began again between two checks is a new stall.
        continues = before is not None and before.episode == state.episode and state.stalled
        self._stall = state if state.stalled else None
        if before is not None and not continues:
            self._diagnoser.stacks = None
            seconds = max(0.0, state.since - before.since)
            self._alarms.recovered(seconds, self._reading.tracker.summary(), state.phase, now)
        return state, continues

    def _diagnosis(self, now: float, ending: Ending | None = None) -> tuple[Diagnosis, bool]:
        state = self._stall
        with self._guarded("watching the run"):
            state = self._watch.check(now, begin=False)
        diagnosis, sure = self._diagnoser.diagnose(now, state, ending)
        self._news = False
        if sure:
            diagnosis.stats = Stats(len(self._readers), self._size.bytes, self._size.lines)
            if missed := self._unread + self._dropped:
                diagnosis.notes.append(message("diagnosis.unread-lines", count=missed))
            self.metrics.identity(self.folder.info, diagnosis.environment)
        return diagnosis, sure

    # ---- the end

    def judged(self, ending: Ending) -> Ending:
        """Return the command's ending, corrected by what the agent knows about the cause."""
        return self.advance.judged(self._intake.judged(self.response.judged(ending)))

    def end(self, ending: Ending, now: float | None = None, *, found: Diagnosis | None = None) -> Diagnosis:
        """Conclude the run: open or resolve the remaining incidents, and store the diagnosis.

        `found` replaces the agent's own diagnosis.
        """
        now = self._clock() if now is None else now
        if ending.stopped and self._diagnoser.stacks is None:
            self._diagnoser.stacks = self._last_stacks or self._suspicion.stacks_now
        present = min(now, self._fed_at) if self._unread else now  # the unread lines can show further steps
        with self._guarded("reading the log"):
            for left in self._readers.finish(present):
                # Use the time of the unfinished line because the end of the output is not progress.
                at = max((line.time for line in left if line.time is not None), default=present)
                self._take(left, 0, min(at, present), progress=self._stall is None)
        self._read_last_reports(now)
        with self._guarded("checking the checkpoints"):
            self._intake.look(now, ended=True)
        was_stalled, quiet = self._stall is not None, None
        with self._guarded("watching the run"):
            state, continues = self._check_stall(present)
            quiet = state.seconds if was_stalled and continues else None
        diagnose = functools.partial(self._diagnosis, present)
        read_reports = functools.partial(self._read_last_reports, now)
        self.ending, diagnosis = self.end_evidence.ending(ending, self._probing, diagnose, read_reports)
        diagnosis = diagnosis if found is None else redacted(found)
        is_failure = not self.ending.stopped or diagnosis.verdict in ("failed", "unknown-failure")
        ended_well = self.ending.kind in ("finished", "unknown")
        shown: State = "failed" if is_failure and not ended_well else "finished"
        masked = redacted(self.ending)
        with self._guarded("writing the run's record"):  # written first, because the disk might fill up
            ended_at = steady.wall(now)
            self.folder.keep_end(
                diagnosis, updated_at=ended_at, ended_at=ended_at, ending=masked, state=shown
            )
            self._copies.folder = self.folder.path
        with self._guarded("updating the incidents"):
            self._alarms.ended(self.ending, diagnosis, self._shown_lines(), quiet, now)
            self._reporting.episodes.flush()
            if self.member is not None:
                self.member.end(masked)
            self.metrics.ended(now, self.ending.kind)
        with self._guarded("writing the log copies"):
            self._copies.flush(now, everything=True)
        with self._guarded("writing the run's record"):
            self.folder.close(diagnosis, **self._details(now))
        return diagnosis

    def leave(self) -> None:
        """Send the last report to the other hosts of the run. Call this method after ``end``."""
        if self.member is not None:
            self.member.close()

    # ---- help

    def _join(self) -> None:
        """If the run is still unknown, join the run that the ranks identify."""
        if self._joining is None or self._probing is None:
            return
        member, before = self._joining.look(self._probing.pids()), self.member
        if member is None:
            return
        self.member, self._heartbeat = member, Heartbeat((member,))
        reported = self._reporting.hand_over(member)
        if before is not None:
            member.follow(before)
        else:
            member.take_over(reported)

    def _report_state(self, now: float) -> None:
        if self.member is None:
            return
        state, seen = self._watch.check(now, begin=False), self._suspicion.seen
        stacks, at = seen if seen is not None else (None, 0.0)
        up = self._probing.ranks_up() if self._probing is not None else {}
        running = {rank for rank, rings in up.items() if rings}
        looked = {rank for group in stacks.groups for rank in group.ranks} if stacks is not None else set()
        self.member.update(
            ClusterState(
                ranks=spans_of(running | looked),
                world=len(looked) + stacks.elsewhere if stacks is not None else 0,
                phase=state.phase,
                step=state.step,
                quiet=state.seconds,
                threshold=self._watch.suspicion,
                ruling=self._suspicion.own_ruling,
                stacks=stacks,
                stacks_at=at,
            )
        )

    def _paced(self, rank: int, step: int, pace: RankStep) -> None:
        if self.member is not None:
            self.member.paces.take(rank, step, pace)

    def _read_last_reports(self, now: float) -> None:
        with self._guarded("reading the probe's records"):
            self._read_ranks(now, everything=True)

    def _warned(self, match: Match) -> None:
        """Report a rank's warning about an upcoming failure."""
        self._news = True
        self.metrics.match(match)
        self._alarms.warned(match, self._clock())

    def _shown_lines(self) -> list[str]:
        return [line for line in self.last_lines if line.strip()][-_SHOWN_LINES:]

    def _lost(self) -> int:
        probing = self._probing.lost if self._probing is not None else 0
        return self._copies.lost + self.folder.failed_writes + probing

    def _write_info(self, now: float) -> None:
        info, steady_now, now = self.folder.info, now, steady.wall(now)
        running: State = "training" if self._reading.tracker.progressed else "starting"
        changes: dict[str, object] = {"state": "stalled" if self._stall is not None else running}
        changes |= self._details(steady_now)
        news = (changes["state"], changes["rank_logs"]) != (info.state, info.rank_logs)
        if news or not 0 <= now - info.updated_at < _WRITTEN_SECONDS:
            self.folder.write_info(updated_at=now, **changes)

    def _details(self, now: float) -> dict[str, object]:
        """Return the fields of the run's record other than its state."""
        threshold, moved = self._watch.check(now, begin=False).threshold, steady.moved()
        tracker = self._reading.tracker
        return {
            "threshold": round(threshold, 3) if threshold < FOREVER else None,
            "quiet_since": self._watch.last_sign + moved,
            "step": tracker.last_step,
            "total_steps": tracker.total_steps,
            "loss": tracker.last_loss,
            "rank_logs": sorted(self._copies.files),
            "ranks": spans_of(self._ranks),
            "first_rank": self._first_rank,
            "gaps": [Gap(gap.lines, gap.since + moved, gap.until + moved) for gap in self._copies.gaps],
        }
