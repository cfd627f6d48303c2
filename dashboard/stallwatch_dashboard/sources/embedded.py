"""Runs, numbers and incidents from this host's state folder: the source that needs no server."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
from sqlalchemy.exc import SQLAlchemyError

from stallwatch_alerts.store import IncidentStore
from stallwatch_dashboard import frames
from stallwatch_dashboard.frames import RunFrames
from stallwatch_dashboard.overview import (
    Numbers,
    RunRow,
    in_order,
    make_row,
    numbers_from_frames,
    numbers_from_progress,
    numbers_from_store,
)
from stallwatch_dashboard.settings import DashboardSettings, from_environment
from stallwatch_dashboard.sources.rebuild import Rebuilder
from stallwatch_dashboard.sources.scraper import Scraper, TargetStatus
from stallwatch_dashboard.sources.store import MetricStore
from stallwatch_exporter.incident import Incident
from stallwatch_exporter.runfolder import AgentInfo, agent_alive, list_runs, runs_home
from stallwatch_rules.records import Progress

_log = logging.getLogger(__name__)
_LATE_SECONDS = 5.0  #: scraping that began later than this after the run misses its beginning
_MOST_JOURNAL = 4 * 1024 * 1024  #: bytes read from the end of a run's incidents.jsonl


class Embedded:
    """One per process. Every method may be called from any thread."""

    def __init__(self, settings: DashboardSettings, *, clock: Callable[[], float] = time.time) -> None:
        self.settings = settings
        self.clock = clock
        self.store = MetricStore.open(settings.home / "metrics.duckdb")
        self.scraper = Scraper(
            self.store,
            settings.home,
            settings.targets,
            every=settings.scrape_seconds,
            keep_days=settings.keep_days,
            clock=clock,
        )
        self._rebuilder = Rebuilder(tuple(Path(folder) for folder in settings.rules))
        self._incidents: IncidentStore | None = None
        self._ended: dict[str, RunRow] = {}  # what ended is worked out once

    def start(self) -> None:
        """Begin to scrape."""
        self.scraper.start()

    def close(self) -> None:
        """Stop scraping and let go of the files."""
        self.scraper.close()
        self.store.close()
        if self._incidents is not None:
            self._incidents.close()

    @property
    def problem(self) -> str | None:
        """What is wrong with this source, for the page."""
        return self.store.problem

    def targets(self) -> list[TargetStatus]:
        """How scraping goes."""
        return self.scraper.status()

    def folder(self, run: str) -> Path:
        """Where a local run keeps its traces."""
        return runs_home(self.settings.home) / run

    def info(self, run: str) -> AgentInfo | None:
        """The agent's own record of a local run."""
        return next((info for info in list_runs(self.settings.home) if info.run == run), None)

    def run_names(self) -> list[str]:
        """Every run known here, newest first."""
        local = [info.run for info in list_runs(self.settings.home)]
        seen = self.store.last_seen()
        return local + sorted(seen.keys() - set(local), key=lambda run: -seen[run])

    def rows(self) -> list[RunRow]:
        """One row a run, those that need someone first."""
        local = {info.run: info for info in list_runs(self.settings.home)}
        seen = self.store.last_seen()
        incidents = self._by_run()
        rows = []
        for run in local.keys() | seen.keys():
            row = self._ended.get(run) or self._row(
                run, local.get(run), seen.get(run), incidents.get(run, [])
            )
            if row.ended_at is not None and self.clock() - row.ended_at > 10:
                self._ended[run] = row
            rows.append(row)
        return in_order(rows)

    def row(self, run: str) -> RunRow | None:
        """One run's row; None where nobody knows the run."""
        info, seen = self.info(run), self.store.last_seen().get(run)
        if info is None and seen is None:
            return None
        return self._row(run, info, seen, self.incidents(run), whole=True)

    def frames(self, run: str, since: float | None = None) -> RunFrames:
        """The run's numbers: scraped ones, else those its log copies tell."""
        found = frames.from_store(self.store, run, since)
        if not self.folder(run).is_dir():
            return found
        if found.nothing:
            return self._rebuilder.frames(self.folder(run))
        info, first = self.info(run), self.store.first_seen(run)
        if since is None and info and first is not None and first - info.started_at > _LATE_SECONDS:
            return frames.joined(self._rebuilder.frames(self.folder(run), before=first), found, first)
        return found

    def incidents(self, run: str) -> list[Incident]:
        """The run's incidents, newest first: from the database, else from the run's own journal."""
        try:
            found = self._database().list(run=run)
        except (SQLAlchemyError, msgspec.MsgspecError, OSError) as error:
            _log.warning("incidents cannot be read: %s", type(error).__name__)
            found = []
        return found or journal(self.folder(run))

    def _row(
        self,
        run: str,
        info: AgentInfo | None,
        scraped: float | None,
        incidents: list[Incident],
        *,
        whole: bool = False,
    ) -> RunRow:
        """A row; where nobody scraped, from the diagnosis at the end or, for `whole`, from all log copies."""
        heard = max((t for t in (scraped, info.updated_at if info else None) if t is not None), default=None)
        numbers = numbers_from_store(self.store, run)
        if numbers == Numbers() and self.folder(run).is_dir():
            if whole:
                numbers = numbers_from_frames(self._rebuilder.frames(self.folder(run)))
            else:
                numbers = numbers_from_progress(said_at_the_end(self.folder(run)))
        alive = info is None or agent_alive(info)
        return make_row(run, info, numbers, incidents, alive=alive, seen=heard, now=self.clock())

    def _by_run(self) -> dict[str, list[Incident]]:
        found: dict[str, list[Incident]] = {}
        with contextlib.suppress(SQLAlchemyError, msgspec.MsgspecError, OSError):
            for incident in self._database().list(limit=5000):
                found.setdefault(incident.run, []).append(incident)
        return found

    def _database(self) -> IncidentStore:
        if self._incidents is None:
            url = self.settings.incidents_url
            self._incidents = IncidentStore(url) if url else IncidentStore.at_home(self.settings.home)
        return self._incidents


def journal(folder: Path) -> list[Incident]:
    """The incidents in a run's ``incidents.jsonl``, each as it was last written, newest first."""
    found: dict[str, Incident] = {}
    try:
        with (folder / "incidents.jsonl").open("rb") as lines:
            lines.seek(max(0, lines.seek(0, 2) - _MOST_JOURNAL))
            for line in lines:
                with contextlib.suppress(
                    msgspec.MsgspecError
                ):  # the first line may be cut, the last half written
                    incident = msgspec.json.decode(line, type=Incident)
                    found[incident.id] = incident
    except OSError:
        pass
    return sorted(found.values(), key=lambda incident: -incident.opened_at)


def said_at_the_end(folder: Path) -> Progress:
    """The progress in the diagnosis that the agent wrote when the run ended; an empty one without it."""
    try:
        return msgspec.json.decode((folder / "diagnosis.json").read_bytes(), type=_Ended).progress
    except (OSError, msgspec.MsgspecError):
        return Progress()


class _Ended(msgspec.Struct):
    progress: Progress = msgspec.field(default_factory=Progress)


_lock = threading.Lock()
_source: Embedded | None = None


def shared() -> Embedded:
    """The process's one source, started on first use with the settings from the environment."""
    global _source
    with _lock:
        if _source is None:
            _source = Embedded(from_environment())
            _source.start()
        return _source


def close_shared() -> None:
    """Close it, at the end of the process or of a test."""
    global _source
    with _lock:
        if _source is not None:
            _source.close()
            _source = None
