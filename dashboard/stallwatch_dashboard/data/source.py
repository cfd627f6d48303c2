"""Provide the pages with runs, incidents, and metrics from the state folder or a Prometheus server."""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec

from stallwatch_dashboard.data import frames
from stallwatch_dashboard.data.frames import NumberStore, RunFrames
from stallwatch_dashboard.data.incident_store import LazyIncidentStore
from stallwatch_dashboard.data.log_copies import LogCopy, copies
from stallwatch_dashboard.data.overview import (
    Agent,
    Numbers,
    RunRow,
    as_one,
    hosts_of,
    in_order,
    make_row,
    newest_start,
    state_from_log,
    with_final_numbers,
)
from stallwatch_dashboard.data.prometheus import PrometheusStore
from stallwatch_dashboard.data.rebuild import numbers_from_frames, rebuilt_frames
from stallwatch_dashboard.data.scraper import Scraper, TargetStatus
from stallwatch_dashboard.data.store import MetricStore
from stallwatch_dashboard.settings import DashboardSettings, from_environment
from stallwatch_exporter.cluster.merging import qualified
from stallwatch_exporter.incident import UNKNOWN_FAILURE, Incident, left_open
from stallwatch_exporter.runs.run_state import LATE_INDIRECTLY_SECONDS, LATE_SECONDS
from stallwatch_exporter.runs.runfolder import (
    RUN_INCIDENTS,
    AgentInfo,
    folders_of,
    list_runs,
    read_info,
    runs_home,
)
from stallwatch_exporter.watching.episodes import folded
from stallwatch_exporter.watching.incidents import last_states, read_journal
from stallwatch_rules.decoding import from_json
from stallwatch_rules.files import open_regular
from stallwatch_rules.messages import Text
from stallwatch_rules.records import Progress, UnknownException
from stallwatch_rules.report.phrases import exception_in_short
from stallwatch_rules.text.foreign_json import NOT_JSON

_LATE_SECONDS = 5.0  #: if the first scrape is this many seconds after a run's start, the beginning is missing
_MOST_JOURNAL = 4 * 1024 * 1024  #: maximum number of bytes read from the end of a run's incidents.jsonl
_KEPT_JOURNALS = 1000  #: number of runs whose journals are cached


class Source:
    """Provides the data for all pages of this process. All methods are thread-safe."""

    def __init__(self, settings: DashboardSettings, *, clock: Callable[[], float] = time.time) -> None:
        self.settings = settings
        self.clock = clock
        self.store: NumberStore
        self.scraper: Scraper | None = None
        self._late = LATE_INDIRECTLY_SECONDS if settings.prometheus_url else LATE_SECONDS
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
        self.cases = LazyIncidentStore(settings.incidents_url, settings.home)
        self._ended: dict[str, RunRow] = {}  # rows of ended runs, which are computed only once

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

    def agents(self, run: str) -> list[Agent]:
        """Return the agents of a run that have folders in the state folder, which several hosts can share."""
        return [Agent(folder, info) for folder, info in folders_of(self.settings.home, run)]

    def copies(self, run: str) -> list[LogCopy]:
        """Return the log copies of a run from all its hosts."""
        agents = self.agents(run)
        hosts = [agent.info.host_in_run for agent in agents] if hosts_of(agents) else []
        return copies(*(agent.folder for agent in agents), hosts=hosts)

    def info(self, run: str) -> AgentInfo | None:
        """Return the run's record, which `as_one` combines from the records of its agents."""
        return as_one(self.agents(run))

    def ended(self) -> set[str]:
        known = {run: as_one(agents) for run, agents in self._agents().items()}
        return {run for run, info in known.items() if info is not None and info.ended_at is not None}

    def _agents(self) -> dict[str, list[Agent]]:
        """Return the agents of all runs, the newest run first."""
        found: dict[str, list[Agent]] = {}
        for info in list_runs(self.settings.home):
            found.setdefault(info.run, []).append(Agent(runs_home(self.settings.home) / info.folder, info))
        return found

    def run_names(self) -> list[str]:
        """Return the names of all runs that have a folder or metrics, newest first."""
        local = list(self._agents())
        seen = self.store.last_seen()
        return local + sorted(seen.keys() - set(local), key=lambda run: -seen[run])

    def rows(self) -> list[RunRow]:
        """Return a row for each run. Runs that need attention come first."""
        local = self._agents()
        seen = self.store.last_seen()
        incidents: dict[str, list[Incident]] = {}
        for incident in self.cases.incidents(status="open", limit=5000):
            incidents.setdefault(incident.run, []).append(incident)
        under_way = (local.keys() | seen.keys()) - self._ended.keys()
        numbers = self.store.summaries(under_way, self.clock())
        rows = list(self._ended.values())
        for run in under_way:
            agents = local.get(run, [])
            info = as_one(agents)
            if (numbers[run] if info is None else info).ended_at is None:
                known = incidents.get(run) or journal(*(agent.folder for agent in newest_start(agents)))
                known = [_as_left(incident, agents) for incident in known]
            else:
                known = self.incidents(run)
            row = self._row(run, agents, seen.get(run), known, numbers[run])
            if row.ended_at is not None and self.clock() - row.ended_at > 10:
                self._ended[run] = row
            rows.append(row)
        return in_order([row for row in rows if row.run in local or row.run in seen])

    def row(self, run: str) -> RunRow | None:
        agents, seen = self.agents(run), self.store.last_seen().get(run)
        if not agents and seen is None:
            return None
        numbers = self.store.summaries([run], self.clock())[run]
        return self._row(run, agents, seen, self.incidents(run), numbers, whole=True)

    def frames(self, run: str) -> RunFrames:
        """Return the scraped metrics of the run. If some are missing, read them from the run's log copies."""
        found = frames.from_store(self.store, run)
        agents = self.agents(run)
        folders, info = [agent.folder for agent in agents], as_one(agents)
        if info is None:
            return found
        if found.nothing:
            return rebuilt_frames(*folders, rules=self.settings.rules)
        first = self.store.first_seen(run)
        if first is not None and first - info.started_at > _LATE_SECONDS:
            early = rebuilt_frames(*folders, rules=self.settings.rules, before=first)
            return frames.joined(early, found, first)
        return found

    def incidents(self, run: str) -> list[Incident]:
        """Return the run's incidents, newest first, from the database or else from the run's own journal."""
        agents = self.agents(run)
        found = self.cases.incidents(run) or journal(*(agent.folder for agent in newest_start(agents)))
        return [_as_left(incident, agents) for incident in found]

    def newest_incidents(self, limit: int) -> list[Incident]:
        """Return the newest incidents of all runs, newest first."""
        agents = self._agents()
        found = self.cases.incidents(limit=limit)
        return [_as_left(incident, agents.get(incident.run, ())) for incident in found]

    def incident(self, key: str) -> Incident | None:
        """Return the incident with this ID, or the incident into which it was merged, or None if unknown."""
        run = key.partition("/")[0]
        stored = self.cases.incident(key)
        if stored is None and run not in self.run_names():
            return None
        return next(
            (incident for incident in self.incidents(run) if key in (incident.id, *incident.aliases)), stored
        )

    def _row(
        self,
        run: str,
        agents: list[Agent],
        scraped: float | None,
        incidents: list[Incident],
        numbers: Numbers,
        *,
        whole: bool = False,
    ) -> RunRow:
        """Return a run's row.

        If nothing was scraped, the metrics come from the log copies (if `whole` is true) or, faster, from the
        diagnosis.
        """
        info, folders = as_one(agents), [agent.folder for agent in agents]
        ended = info is not None and info.ended_at is not None
        end = final_diagnosis(*folders)
        now = self.clock()
        # The time in the record comes from the clock of the agent's host. Therefore, the age of the last
        # scrape is checked separately.
        answers = scraped is not None and now - scraped <= self._late
        signs = [scraped, info.updated_at if info else None]
        seen = max((time for time in signs if time is not None), default=None)
        alive = info is None or ended or any(agent.alive for agent in agents)
        if numbers == Numbers() and folders:
            if whole:
                numbers = numbers_from_frames(rebuilt_frames(*folders, rules=self.settings.rules))
            else:
                numbers = with_final_numbers(numbers, end.progress)
        if ended:  # the diagnosis can contain steps of the probe that the log copies do not show
            numbers = with_final_numbers(numbers, end.progress)
        # Prometheus is queried for the hosts only if a page shows a single run.
        scraped_hosts = tuple(self.store.hosts(run)) if whole or self.scraper is not None else ()
        hosts = max(hosts_of(agents), scraped_hosts, key=len)
        row = make_row(
            run, info, numbers, incidents, alive=alive, answers=answers, seen=seen, now=now, hosts=hosts
        )
        if row.state == "unwatched":
            row = replace(row, state=state_from_log(end.verdict, end.progress, cause=end.primary is not None))
        if row.state == "failed" and not row.cause:
            row = replace(row, cause=end.cause, exception=end.exception)
        return row


def _as_left(incident: Incident, agents: Sequence[Agent]) -> Incident:
    """Return the incident. If it is open although no agent watches its run, return a closed copy."""
    info = None if incident.status != "open" or incident.is_final_incident else as_one(agents)
    if info is None or not info.end_is_unknown or any(agent.alive for agent in agents):
        return incident
    return left_open(incident, info)


def journal(*folders: Path) -> list[Incident]:
    """Return the incidents in the journals of a run's folders, newest first.

    The result is cached until a journal changes. For a multi-host run, the result contains the merged
    incidents. It also contains incidents that no coordinator has merged, because an agent might have had no
    coordinator.
    """
    stamps = []
    for path in (folder / name for name in (RUN_INCIDENTS, "incidents.jsonl") for folder in folders):
        with contextlib.suppress(OSError):
            status = path.stat()
            stamps.append((path, status.st_mtime_ns, status.st_size))
    return list(_journal(tuple(stamps))) if stamps else []


@functools.lru_cache(_KEPT_JOURNALS)
def _journal(stamps: tuple[tuple[Path, int, int], ...]) -> tuple[Incident, ...]:
    paths = [path for path, *_ in stamps]

    def read(path: Path) -> list[Incident]:
        return read_journal(path.parent, _MOST_JOURNAL, name=path.name)

    of_run = last_states(incident for path in paths if path.name == RUN_INCIDENTS for incident in read(path))
    known = {name for incident in of_run for name in (incident.id, *incident.aliases)}
    of_agents: list[Incident] = []
    for path in (path for path in paths if path.name != RUN_INCIDENTS):
        found = read(path)
        if of_run:
            info = read_info(path.parent)
            agent = info.agent if info is not None else ""
            found = [
                incident
                for incident in found
                if agent and known.isdisjoint((incident.id, qualified(agent, incident)))
            ]
        of_agents += folded(found)
    every = [*of_run, *last_states(of_agents)]
    merged = {alias for incident in every for alias in incident.aliases}
    left = (incident for incident in every if incident.id not in merged)
    return tuple(sorted(left, key=lambda incident: -incident.opened_at))


class _Primary(msgspec.Struct):
    rule: str = ""


class _Ended(msgspec.Struct):
    """The part of an ended run's diagnosis that the run's row shows."""

    verdict: str = ""
    progress: Progress = msgspec.field(default_factory=Progress)
    primary: _Primary | None = None
    unknown: list[UnknownException] = []

    @property
    def cause(self) -> str:
        """The rule ID of the primary cause, or "" if there is no diagnosis."""
        if self.primary is not None:
            return self.primary.rule
        return UNKNOWN_FAILURE if self.verdict else ""

    @property
    def exception(self) -> str:
        """The short form of the exception that ended the run, if no rule matches it."""
        return exception_in_short(self.unknown[0]) if self.unknown and self.primary is None else ""


def final_diagnosis(*folders: Path) -> _Ended:
    """Return the diagnosis that the agent wrote at the end of the run. If there is none, return an empty one.

    If several agents wrote a diagnosis, prefer a diagnosis that explains why the run failed.
    """
    found = []
    for folder in folders:
        with contextlib.suppress(OSError, *NOT_JSON), open_regular(folder / "diagnosis.json") as file:
            found.append(from_json(file.read(), _Ended))
    failed = ("failed", "unknown-failure")
    return max(found, key=lambda end: (end.verdict in failed, end.primary is not None), default=_Ended())


_lock = threading.Lock()
_source: Source | None = None


def shared() -> Source:
    """Return the source of all pages. The first call starts it with the settings from the environment."""
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
