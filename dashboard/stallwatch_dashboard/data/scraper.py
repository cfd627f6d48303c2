"""Scrape and store the metrics of every agent, once a second by default."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import duckdb

from stallwatch_dashboard.data.metrics_page import MOST_SECONDS, Reading, ScrapeError, endpoint, fetch, parse
from stallwatch_dashboard.data.store import MetricStore, plain_error
from stallwatch_exporter.rings.presence import is_there, process_namespace
from stallwatch_exporter.runs.runfolder import AgentInfo, list_runs
from stallwatch_exporter.serving.authentication import own_authorization
from stallwatch_exporter.serving.server import DASHBOARD_HEADER
from stallwatch_exporter.settings import ServerSettings
from stallwatch_rules.messages import Message, message

_log = logging.getLogger(__name__)
_PRUNE_SECONDS = 3600.0
_END_SECONDS = 3.0  #: seconds for which an agent continues to serve its metrics after the run ends
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


@dataclass
class TargetStatus:
    """The scraping status of one endpoint and run. Another agent can use the same port later."""

    url: str
    run: str | None  #: the run that a local agent watches, or None for configured targets
    answered: float | None = None  #: time of the last response with metrics
    scrapes: int = 0
    failures: int = 0
    error: Message | None = None  #: error of the last scrape, or None after a success

    def lag(self, now: float) -> float | None:
        """Return the seconds since the last response."""
        # If the clock was set back, the lag is wrong until the next response.
        return None if self.answered is None else abs(now - self.answered)


class Scraper:
    """Scrapes all endpoints regularly, in a separate thread."""

    def __init__(
        self,
        store: MetricStore,
        home: Path,
        targets: Iterable[str] = (),
        *,
        every: float = 1.0,
        keep_days: int = 30,
        clock: Callable[[], float] = time.time,
        get: Callable[[str, Mapping[str, str]], str] = fetch,
        server: ServerSettings = ServerSettings(),  # noqa: B008 - the default is frozen
    ) -> None:
        """Create the scraper. It sends agents the first credential in the files that `server` names."""
        self._store = store
        self._home = home
        self._targets = tuple(targets)
        self._every = every
        self._keep = keep_days * 86400.0
        self._clock = clock
        self._get = get
        self._server = server
        self._pool = ThreadPoolExecutor(16, thread_name_prefix="scrape")
        self._busy: dict[str, Future[None]] = {}
        self._status: dict[tuple[str, str | None], TargetStatus] = {}  # status by endpoint and run
        self._pruned = -float("inf")
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="scraper", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop scraping. Afterward, the store can be closed."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout=2 * MOST_SECONDS)
        self._pool.shutdown(wait=True, cancel_futures=True)

    def scrape_once(self) -> None:
        """Query every endpoint that has no pending query. Wait for all responses except slow ones."""
        queries = []
        authorization = own_authorization(self._server)
        for url, info in self._endpoints():
            run = None if info is None else info.run
            running = self._busy.get(url)
            if running is None or running.done():
                status = self._status.setdefault((url, run), TargetStatus(url, run))
                sent = {"Authorization": authorization} if authorization and _has_port(info) else {}
                if info is None:  # a configured target; the run folder contains the end of a local run
                    sent[DASHBOARD_HEADER] = "1"
                self._busy[url] = self._pool.submit(self._scrape, status, sent, _only_there(info))
                queries.append(self._busy[url])
        wait(queries, timeout=max(self._every, 1.0))
        if self._clock() - self._pruned > _PRUNE_SECONDS:
            self._pruned = self._clock()
            self._guard(lambda: self._store.prune(self._clock() - self._keep))

    def status(self) -> list[TargetStatus]:
        return list(self._status.values())

    def _run(self) -> None:
        while not self._stop.is_set():
            began = time.monotonic()
            try:
                self.scrape_once()
            except Exception:  # a failed round must not end the thread
                _log.exception("the targets could not be scraped")
            self._stop.wait(max(0.05, self._every - (time.monotonic() - began)))

    def _endpoints(self) -> list[tuple[str, AgentInfo | None]]:
        found: dict[str, AgentInfo | None] = {}
        for target in self._targets:
            try:
                found[endpoint(target)] = None
            except ScrapeError as error:
                self._status.setdefault((target, None), TargetStatus(target, None)).error = error.why
        # The newest run comes first. If two runs name the same port, the agent of the earlier run has ended.
        for info in list_runs(self._home):
            serves = info.ended_at is None or self._clock() - info.ended_at < _END_SECONDS
            if (url := _url(info)) and serves:
                named = found.setdefault(url, info)
                older = self._status.get((url, info.run))
                # In a multi-host run, each agent can report 127.0.0.1 as its address.
                if older is not None and (named is None or named.run != info.run):
                    older.error = message("dashboard.source_address_reused")
        return list(found.items())

    def _scrape(self, status: TargetStatus, headers: Mapping[str, str], host: str) -> None:
        """Scrape an endpoint. `host` names the agent's host if only that host can reach the agent."""
        status.scrapes += 1
        try:
            page = self._get(status.url, headers)
            readings = _of(parse(page, urlsplit(status.url).port or ""), status.run)
        except ScrapeError as error:
            status.failures += 1
            why = error.why
            status.error = message("dashboard.source_of_other_host", reason=why, host=host) if host else why
            return
        now = self._clock()
        if self._guard(lambda: self._store.write(readings, now)):
            status.answered = now
            status.error = None

    def _guard(self, act: Callable[[], object]) -> bool:
        """Call `act` and return whether it succeeded. The pages show an error, such as a full disk."""
        try:
            act()
        except duckdb.Error as error:
            self._store.problem = message("dashboard.numbers_not_kept", error=plain_error(error))
            return False
        return True


def _has_port(info: AgentInfo | None) -> bool:
    """Return whether the endpoint is known to belong to an agent, so that credentials can be sent to it.

    The endpoint must be a configured target, or the agent's process must be alive on this host. Any account
    could listen on the port of an agent that has ended.
    """
    if info is None:
        return True
    up = max(info.started_at, info.updated_at)
    return info.namespace == process_namespace() and is_there(info.pid, up)


def _url(info: AgentInfo) -> str:
    """Return the URL of an agent's metrics, as seen from this host, or "" if the agent serves no metrics."""
    parts = urlsplit(info.endpoint or "")
    if not info.everywhere or info.host == socket.gethostname() or not info.host:
        return parts.geturl()
    return parts._replace(netloc=f"{info.host}:{parts.port}").geturl()


def _only_there(info: AgentInfo | None) -> str:
    """Return the agent's host if its endpoint can be reached only there, or "" if this host can reach it."""
    if info is None or info.everywhere or info.host == socket.gethostname():
        return ""
    return info.host if urlsplit(info.endpoint or "").hostname in _LOOPBACK else ""


def _of(readings: list[Reading], run: str | None) -> list[Reading]:
    """Return the readings of the run. Raise `ScrapeError` if an agent of another run uses the port."""
    if run is None:
        return [reading for reading in readings if reading.run]
    expected = [reading for reading in readings if reading.run == run]
    if not expected:
        raise ScrapeError("source_other_run", run=run)
    return expected
