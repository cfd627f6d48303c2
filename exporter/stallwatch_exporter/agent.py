"""The agent of one run: lines in, metrics, copies and incidents out.

It has no thread and no clock of its own: ``feed`` brings bytes, ``tick`` brings time. Nothing that goes wrong
in here gets out: it is counted, told once, and the command never hears of it.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version

from stallwatch_exporter.advance import Advance
from stallwatch_exporter.alarms import BAD_ENDINGS, Alarms
from stallwatch_exporter.copies import RankCopies
from stallwatch_exporter.incident import Ending, Incident, Sink
from stallwatch_exporter.incidents import IncidentBook, redacted
from stallwatch_exporter.metrics import RunMetrics
from stallwatch_exporter.runfolder import RunFolder, State
from stallwatch_exporter.settings import ExporterSettings
from stallwatch_exporter.stall import StallState, StallWatch
from stallwatch_rules.catalogue import Catalogue
from stallwatch_rules.lines import LineReader
from stallwatch_rules.reading import RunReading
from stallwatch_rules.records import Diagnosis, Line, Stats
from stallwatch_rules.redact import redact

JUDGE_SECONDS = 5.0  #: how often a run in which something happens is diagnosed anew
_JUDGE_SHARE = 20  # at most this part (1/20) of the time goes into diagnosing
_LAST_LINES = 200
_SHOWN_LINES = 3


class Agent:
    """Watches one run."""

    def __init__(
        self,
        folder: RunFolder,
        settings: ExporterSettings,
        catalogue: Catalogue,
        sinks: Sequence[Sink] = (),
        *,
        clock: Callable[[], float] = time.time,
        notice: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.folder = folder
        self.metrics = RunMetrics(folder.run)
        self.last_lines: deque[str] = deque(maxlen=_LAST_LINES)
        self.errors = 0  #: what went wrong in here, or in a sink
        self._settings = settings
        self._sinks = tuple(sinks)
        self._clock = clock
        self._notice = notice
        self._reading = RunReading(catalogue)
        self._readers: dict[str, LineReader] = {}
        self._watch = StallWatch(settings, folder.info.started_at)
        self._advance = Advance(self._reading.tracker, self._watch, self.metrics)
        self._book = IncidentBook(folder.run, folder.info.host, self._tell)
        self._alarms = Alarms(self._book, catalogue)
        self._copies = (
            RankCopies(folder.path, redact, notice, settings.keep_gb * 1e9)
            if folder.problem is None
            else None
        )
        self._told: set[str] = set()
        self._news = False  # something came since the last diagnosis
        self._judge_at = 0.0
        self._stall: StallState | None = None  # as it was at the last look
        self._looked_at = 0.0
        self._size = Stats()
        self._started = time.monotonic()
        self._dropped = 0
        self.metrics.thresholds(self._watch.thresholds)
        self._show_versions({})

    # ---- lines

    def feed(
        self,
        source: str,
        data: bytes,
        now: float,
        *,
        stream: str = "stdout",
        rank: int | None = None,
        fresh: bool = False,
    ) -> None:
        """Bytes that `source` printed at `now`. With `fresh` they do not continue what came before."""
        with self._guarded("the log copies"):
            if self._copies is not None:
                self._copies.write(source, stream, data, now, rank)
        with self._guarded("reading the log"):
            self._take(self._lines(source, data, now, rank, fresh), len(data), now)

    def history(
        self, source: str, data: bytes, rank: int | None, *, counted: bool, shift: float = 0.0
    ) -> None:
        """Bytes that were there before us. Their own timestamps count, moved by `shift` seconds."""
        with self._guarded("reading the log"):
            lines = self._lines(source, data, None, rank, False)
            if shift:
                lines = [_moved(line, shift) for line in lines]
            self._take(lines, len(data), None, counted=counted)

    def history_ends(self, last_sign: float) -> Diagnosis:
        """All that was there is read; the files were last written to at `last_sign`. What is known so far."""
        with self._guarded("taking over the run"):
            self._advance.history(last_sign)
            found = self._diagnose(last_sign)
            self._alarms.forgive(found)
            return found
        return Diagnosis("no-training-log")

    def _lines(
        self, source: str, data: bytes, now: float | None, rank: int | None, fresh: bool
    ) -> list[Line]:
        reader = self._readers.get(source)
        lines: list[Line] = []
        if reader is None or fresh:
            if reader is not None:
                lines = reader.finish(now)
            reader = self._readers[source] = LineReader(source, rank)
        return lines + reader.feed(data, now)

    def _take(self, lines: list[Line], size: int, now: float | None, counted: bool = True) -> None:
        self._size.bytes += size
        self._size.lines += len(lines)
        if counted:
            self.metrics.read(len(lines), size)
        if not lines:
            return
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
            progressed = self._advance.seen(now)
            self._alarms.matched(seen.matches, now)
            self._news = self._news or progressed or bool(seen.matches)

    # ---- time

    def tick(self, now: float | None = None) -> None:
        """Look at the clock: about once a second, whether lines come or not."""
        now = self._clock() if now is None else now
        with self._guarded("the log copies"):
            if self._copies is not None:
                self._copies.flush(now)
        with self._guarded("watching the run"):
            self._look(now)
        with self._guarded("the metrics"):
            self.metrics.thresholds(self._watch.thresholds)
            self.metrics.dropped(self._dropped + self._lost())
        with self._guarded("the run's record"):
            self._write_info(now)

    def paused(self, seconds: float) -> None:
        """We stood still ourselves (Ctrl-Z, a suspended machine)."""
        self._watch.pause(seconds)

    def dropped(self, total: int) -> None:
        """How many lines were passed through unseen until now."""
        self._dropped = total

    def _look(self, now: float) -> None:
        state, continues = self._check_stall(now)
        if state.stalled:
            since = self._looked_at if continues else state.since + state.threshold
            self.metrics.stalled(max(0.0, now - since))
        self._looked_at = now
        begins = state.stalled and not continues
        if begins or self._alarms.due(now) or (now >= self._judge_at and (self._news or state.stalled)):
            diagnosis = self._diagnose(now)
            if state.stalled:  # first: what a stall names as its cause is not told a second time
                self._alarms.stalled(state, diagnosis, self._shown_lines(), now)
            self._alarms.judged(diagnosis, now)

    def _check_stall(self, now: float) -> tuple[StallState, bool]:
        """The state, and whether it is the stall of the last look; a recovery in between is told."""
        state, before = self._watch.check(now), self._stall
        # A stall that ended and began anew between two looks is another one.
        continues = before is not None and before.episode == state.episode and state.stalled
        self._stall = state if state.stalled else None
        if before is not None and not continues:
            self._alarms.recovered(max(0.0, state.since - before.since), now)
        return state, continues

    def _diagnose(self, now: float, ending: Ending | None = None) -> Diagnosis:
        state = self._watch.check(now)
        start = time.perf_counter()
        failed = {"finished": False, "unknown": None, "interrupted": None}
        diagnosis = redacted(
            self._reading.diagnose(
                ending=f"{ending.kind}: {ending.detail}" if ending else "",
                failed=failed.get(ending.kind, True) if ending else None,
                now=now,
                threshold=state.threshold,
                stalled=state.stalled,
                language=self._settings.language,
            )
        )
        diagnosis.stats = Stats(
            len(self._readers), self._size.bytes, self._size.lines, time.monotonic() - self._started
        )
        self._news = False
        self._judge_at = now + max(JUDGE_SECONDS, _JUDGE_SHARE * (time.perf_counter() - start))
        self._show_versions(diagnosis.environment)
        return diagnosis

    # ---- the end

    def end(self, ending: Ending, now: float | None = None) -> Diagnosis:
        """The command ended, or we stop looking: raise or resolve what is left, and keep the diagnosis."""
        now = self._clock() if now is None else now
        diagnosis = Diagnosis("unknown-failure" if ending.kind in BAD_ENDINGS else "no-training-log")
        diagnosis.notes.append("The diagnosis itself failed; the log copies are in the run's folder.")
        with self._guarded("reading the log"):
            self._take([line for reader in self._readers.values() for line in reader.finish(now)], 0, now)
        with self._guarded("the diagnosis"):
            was_stalled = self._stall is not None
            state, continues = self._check_stall(now)
            diagnosis = self._diagnose(now, ending)
            quiet = state.seconds if was_stalled and continues else None
            self._alarms.ended(ending, diagnosis, self._shown_lines(), quiet, now)
        with self._guarded("the log copies"):
            if self._copies is not None:
                self._copies.flush(now, everything=True)
        with self._guarded("the run's record"):
            self.folder.write_json("diagnosis.json", diagnosis)
            shown: State = "finished" if ending.kind in ("finished", "unknown") else "failed"
            self._write_info(now, state=shown, ended_at=now, ending=redacted(ending))
        return diagnosis

    # ---- help

    def _tell(self, incident: Incident) -> None:
        rule, severity = incident.rule, incident.severity
        self.metrics.incident(rule, severity, self._book.has_open(rule, severity))
        self.folder.append_incident(incident)
        for sink in self._sinks:
            with self._guarded("telling of an incident"):
                sink(incident)

    def _shown_lines(self) -> list[str]:
        return [line for line in self.last_lines if line.strip()][-_SHOWN_LINES:]

    def _lost(self) -> int:
        return (self._copies.lost if self._copies is not None else 0) + self.folder.failed_writes

    def _write_info(self, now: float, **changes: object) -> None:
        info = self.folder.info
        if "state" not in changes:
            running: State = "training" if self._reading.tracker.progressed else "starting"
            changes["state"] = "stalled" if self._stall is not None else running
        if self._copies is not None:
            changes["rank_logs"] = sorted(self._copies.files)
        if "ended_at" in changes or changes["state"] != info.state or now - info.updated_at >= 1.0:
            self.folder.write_info(updated_at=now, **changes)

    def _show_versions(self, environment: dict[str, str]) -> None:
        facts = {"host": self.folder.info.host, "stallwatch": _own_version(), **environment}
        self.metrics.info(
            {
                name.replace("-", "_"): value
                for name, value in facts.items()
                if _NAME.fullmatch(name) and _SHORT.fullmatch(value)
            }
        )

    @contextlib.contextmanager
    def _guarded(self, what: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self.errors += 1
            if what not in self._told:
                self._told.add(what)
                self._notice(f"{what} failed ({type(error).__name__}: {redact(str(error))}); the run goes on")


_NAME = re.compile(r"[a-z][a-z0-9_-]{0,40}")
_SHORT = re.compile(r"[\w.+:-]{1,60}")


def _own_version() -> str:
    try:
        return version("stallwatch")
    except PackageNotFoundError:
        return "unknown"


def _moved(line: Line, seconds: float) -> Line:
    if line.time is None:
        return line
    return Line(line.text, line.source, line.number, line.rank, line.time + seconds)
