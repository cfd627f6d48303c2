"""Runs, numbers and incidents put together: from this host's state folder, or numbers from a Prometheus."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec

from stallwatch_dashboard.data import frames
from stallwatch_dashboard.data.frames import NumberStore, RunFrames
from stallwatch_dashboard.data.incident_store import Casebook
from stallwatch_dashboard.data.overview import (
    Numbers,
    RunRow,
    in_order,
    make_row,
    told_by_log,
    with_the_end,
)
from stallwatch_dashboard.data.prometheus import PrometheusStore
from stallwatch_dashboard.data.rebuild import last_numbers, numbers_from_frames, rebuilt_frames
from stallwatch_dashboard.data.scraper import Scraper, TargetStatus
from stallwatch_dashboard.data.store import MetricStore
from stallwatch_dashboard.settings import DashboardSettings, from_environment
from stallwatch_exporter.incident import UNKNOWN_FAILURE, Incident
from stallwatch_exporter.runs.runfolder import AgentInfo, agent_alive, list_runs, read_info, runs_home
from stallwatch_exporter.watching.episodes import folded
from stallwatch_exporter.watching.incidents import read_journal
from stallwatch_rules.decoding import from_json
from stallwatch_rules.files import open_regular
from stallwatch_rules.messages import Text
from stallwatch_rules.records import Progress, UnknownException
from stallwatch_rules.report.phrases import exception_in_short
from stallwatch_rules.text.foreign_json import NOT_JSON

_LATE_SECONDS = 5.0  #: scraping that began later than this after the run misses its beginning
_MOST_JOURNAL = 4 * 1024 * 1024  #: bytes read from the end of a run's incidents.jsonl


class Source:
    """One per process. Every method may be called from any thread."""

    def __init__(self, settings: DashboardSettings, *, clock: Callable[[], float] = time.time) -> None:
        self.settings = settings
        self.clock = clock
        self.store: NumberStore
        self.scraper: Scraper | None = None
        if settings.prometheus_url:
            self.store = PrometheusStore(settings.prometheus_url, clock=clock)
        else:
            self.store = kept = MetricStore.open(settings.home / "metrics.duckdb")
            self.scraper = Scraper(
                kept,
                settings.home,
                settings.targets,
                every=settings.scrape_seconds,
                keep_days=settings.keep_days,
                clock=clock,
                server=settings.server,
            )
        self.cases = Casebook(settings.incidents_url, settings.home)
        self._ended: dict[str, RunRow] = {}  # what ended is worked out once

    def start(self) -> None:
        if self.scraper is not None:
            self.scraper.start()

    def close(self) -> None:
        if self.scraper is not None:
            self.scraper.close()
        self.store.close()
        self.cases.close()

    @property
    def problem(self) -> Text | None:
        return self.store.problem

    def targets(self) -> list[TargetStatus]:
        return self.scraper.status() if self.scraper is not None else []

    def folder(self, run: str) -> Path:
        """Where a local run keeps its traces; of a name that leads elsewhere, a folder that is not there."""
        leads_there = run not in ("", ".", "..") and not re.search(r"[/\\\0]", run)
        return runs_home(self.settings.home) / (run if leads_there else ".none")

    def info(self, run: str) -> AgentInfo | None:
        info = read_info(self.folder(run))
        return info if info is not None and info.run == run else None

    def ended(self) -> set[str]:
        return {info.run for info in list_runs(self.settings.home) if info.ended_at is not None}

    def run_names(self) -> list[str]:
        """Every run known here, newest first."""
        local = [info.run for info in list_runs(self.settings.home)]
        seen = self.store.last_seen()
        return local + sorted(seen.keys() - set(local), key=lambda run: -seen[run])

    def rows(self) -> list[RunRow]:
        """One row a run, those that need someone first."""
        local = {info.run: info for info in list_runs(self.settings.home)}
        seen = self.store.last_seen()
        incidents = self._open_by_run()
        under_way = (local.keys() | seen.keys()) - self._ended.keys()
        numbers = self.store.summaries(under_way, self.clock())
        rows = list(self._ended.values())
        for run in under_way:
            row = self._row(run, local.get(run), seen.get(run), incidents.get(run, []), numbers[run])
            if row.ended_at is not None and self.clock() - row.ended_at > 10:
                self._ended[run] = row
            rows.append(row)
        return in_order([row for row in rows if row.run in local or row.run in seen])

    def row(self, run: str) -> RunRow | None:
        info, seen = self.info(run), self.store.last_seen().get(run)
        if info is None and seen is None:
            return None
        numbers = self.store.summaries([run], self.clock())[run]
        return self._row(run, info, seen, self.incidents(run), numbers, whole=True)

    def frames(self, run: str) -> RunFrames:
        """The run's numbers: scraped ones, else those its log copies tell."""
        found = frames.from_store(self.store, run)
        if not self.folder(run).is_dir():
            return found
        if found.nothing:
            return rebuilt_frames(self.folder(run), self.settings.rules)
        info, first = self.info(run), self.store.first_seen(run)
        if info and first is not None and first - info.started_at > _LATE_SECONDS:
            early = rebuilt_frames(self.folder(run), self.settings.rules, before=first)
            return frames.joined(early, found, first)
        return found

    def incidents(self, run: str) -> list[Incident]:
        """The run's incidents, newest first: from the database, else from the run's own journal."""
        return self.cases.incidents(run) or journal(self.folder(run))

    def incident(self, key: str) -> Incident | None:
        """The incident of this id: from the database, else from its run's own journal."""
        if (found := self.cases.incident(key)) is not None:
            return found
        run = key.partition("/")[0]
        return (
            next((i for i in self.incidents(run) if i.id == key), None) if run in self.run_names() else None
        )

    def _row(
        self,
        run: str,
        info: AgentInfo | None,
        scraped: float | None,
        incidents: list[Incident],
        numbers: Numbers,
        *,
        whole: bool = False,
    ) -> RunRow:
        """A row; where nobody scraped, for `whole` from all log copies, else from the diagnosis at the end.

        An agent that was killed wrote none: then the ends of the log copies tell.
        """
        ended, folder = info is not None and info.ended_at is not None, self.folder(run)
        said = said_at_the_end(folder)
        heard = max((t for t in (scraped, info.updated_at if info else None) if t is not None), default=None)
        alive = info is None or agent_alive(info)
        if numbers == Numbers() and folder.is_dir():
            if whole:
                numbers = numbers_from_frames(rebuilt_frames(folder, self.settings.rules))
            else:
                numbers = with_the_end(numbers, said.progress)
            if numbers == Numbers() and not alive:
                numbers = last_numbers(folder)
        if ended:  # log copies, too, tell fewer steps than the probe
            numbers = with_the_end(numbers, said.progress)
        row = make_row(run, info, numbers, incidents, alive=alive, seen=heard, now=self.clock())
        if row.state == "unwatched":
            row = replace(row, state=told_by_log(said.verdict, said.progress, cause=said.primary is not None))
        return replace(row, cause=said.cause, exception=said.exception) if row.state == "failed" else row

    def _open_by_run(self) -> dict[str, list[Incident]]:
        found: dict[str, list[Incident]] = {}
        for incident in self.cases.incidents(status="open", limit=5000):
            found.setdefault(incident.run, []).append(incident)
        return found


def journal(folder: Path) -> list[Incident]:
    """The incidents that the troubles in a run's ``incidents.jsonl`` make, newest first."""
    found = folded(read_journal(folder, _MOST_JOURNAL))
    return sorted(found, key=lambda incident: -incident.opened_at)


class _Primary(msgspec.Struct):
    rule: str = ""


class _Ended(msgspec.Struct):
    """What a row needs of a diagnosis."""

    verdict: str = ""
    progress: Progress = msgspec.field(default_factory=Progress)
    primary: _Primary | None = None
    unknown: list[UnknownException] = []

    @property
    def cause(self) -> str:
        """The rule of its primary cause; empty without a diagnosis."""
        if self.primary is not None:
            return self.primary.rule
        return UNKNOWN_FAILURE if self.verdict else ""

    @property
    def exception(self) -> str:
        """In short, where no rule knows the cause."""
        return exception_in_short(self.unknown[0]) if self.unknown and self.primary is None else ""


def said_at_the_end(folder: Path) -> _Ended:
    """The diagnosis that the agent wrote when the run ended; an empty one without it."""
    try:
        with open_regular(folder / "diagnosis.json") as file:
            return from_json(file.read(), _Ended)
    except (OSError, *NOT_JSON):
        return _Ended()


_lock = threading.Lock()
_source: Source | None = None


def shared() -> Source:
    """The process's one source, started on first use with the settings from the environment."""
    global _source
    with _lock:
        if _source is None:
            _source = Source(from_environment())
            _source.start()
        return _source


def close_shared() -> None:
    global _source
    with _lock:
        if _source is not None:
            _source.close()
            _source = None
