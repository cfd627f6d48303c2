"""Merge the reports from a run's agents through PostgreSQL instead of through a coordinator.

Each agent writes its reports to its own row. One of the agents merges all rows. The merging agent holds an
advisory lock, which belongs to its connection, and updates a heartbeat twice a second. If the heartbeat
stops, another agent ends that connection and takes the lock. Therefore, two agents never merge at the same
time, even after failures of hosts, processes, or the network. The server's clock measures the age of the
heartbeat.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from stallwatch_alerts.masking import error_line
from stallwatch_exporter.cluster.backing import Merges, Refused
from stallwatch_exporter.cluster.identity import RunIdentity
from stallwatch_exporter.cluster.wire import MOST_BYTES, VERSION, AgentReport, Reply, aged
from stallwatch_rules.decoding import from_json
from stallwatch_rules.text.foreign_json import NOT_JSON

if TYPE_CHECKING:  # importing SQLAlchemy takes a second, so only the background thread imports it
    from stallwatch_alerts.storage.cluster_rows import Answer, ClusterRows, Row

_AT_ONCE = 32  # maximum number of reports in memory; each report can have up to `MOST_BYTES` bytes
_SLACK = 1.0  # seconds from the start of this agent to its first post
_BEATS = 3  # number of `retry` intervals from an agent's last post to its next attempt to merge

# Seconds from a post to the first check for its acknowledgement. The interval then doubles.
_FIRST_LOOK = 0.02


@dataclass(frozen=True)
class Timing:
    """Durations for posting and merging reports, in seconds."""

    answer: float = 4.0  #: longest duration of a post

    #: longest wait for the response to a statement; after that, the connection is closed
    statement: float = 2.0
    acknowledgement: float = 1.0  #: longest wait of a post for the merging agent to accept the report
    reconnect: float = 0.5  #: interval between attempts to connect while a post waits
    gather: float = 0.1  #: reports posted within this time are merged together
    beat: float = 0.5  #: interval between heartbeats of the merging agent
    step: float = 1.0  #: interval between the merging agent's checks for lost agents
    absent: float = 1.5  #: time without a heartbeat after which other agents try to take the lock

    #: Time without a heartbeat after which other agents end the connection that holds the lock.
    frozen: float = 4.0
    retry: float = 5.0  #: interval between attempts to connect, and to merge, if nothing is posted


@dataclass
class _Posted:
    """A report from this agent that is not written yet or that the merging agent has not acknowledged."""

    report: AgentReport
    encoded: bytes
    came: float
    sent: float | None = None
    look_at: float = 0.0
    reply: Reply | None = None
    done: threading.Event = field(default_factory=threading.Event)


class _LockLost(Exception):
    """Raised if this agent lost the lock. Another agent can then merge the reports."""


def is_cluster_engine(url: str) -> bool:
    """Return whether agents of one run can exchange reports through the database at this URL."""
    scheme, separator, _ = url.partition("://")
    return bool(separator) and scheme.partition("+")[0] == "postgresql"


class PostgresBacking:
    """Exchanges reports through PostgreSQL.

    While this agent is the merging agent, it passes all reports to `merges`. A separate thread sends this
    agent's reports and calls `merges`. Before each call of `merges`, the server must confirm, over the
    connection that holds the lock, that the lock is still held. `agent` is this agent's ID in its reports.
    `notice` receives one line for each new problem.
    """

    def __init__(
        self,
        url: str,
        identity: RunIdentity,
        merges: Merges,
        *,
        agent: str,
        notice: Callable[[str], None] = lambda _: None,
        timing: Timing = Timing(),
    ) -> None:
        self._url, self._identity, self._merges, self._agent = url, identity, merges, agent
        self._notice, self._timing = notice, timing
        self._mutex = threading.Lock()
        self._waking, self._woken = socket.socketpair()
        self._waking.setblocking(False)
        self._woken.setblocking(False)
        self._thread: threading.Thread | None = None
        self._closed = False
        self._rows: ClusterRows | None = None
        self._posted: _Posted | None = None
        self._began = time.monotonic()  # earliest known start of this agent
        self._has_posted = self._merging = False
        self._compete_at = self._step_at = self._merged_at = 0.0
        self._acknowledged: dict[str, int] = {}  # report numbers by agent, since this agent began to merge
        self._complained = False
        self._refused = ""
        self._skipped: set[str] = set()

    def post(self, report: AgentReport) -> Reply | None:
        """Write this agent's report and return the newest reply of the merging agent.

        Return ``None`` if the database does not respond in time or no agent is merging the reports.
        """
        encoded = msgspec.json.encode(report)
        if len(encoded) > MOST_BYTES:
            self._skip(report.agent, f"it has {len(encoded)} bytes, but the maximum is {MOST_BYTES}")
            return None
        posted = _Posted(report, encoded, time.monotonic())
        with self._mutex:
            if self._refused:
                raise Refused(self._refused)
            if self._closed:
                return None
            self._posted = posted
            self._began = min(self._began, posted.came - report.started_age)
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="stallwatch-cluster", daemon=True)
                self._thread.start()
        self._wake()
        posted.done.wait(self._timing.answer)
        with self._mutex:
            if self._posted is posted:
                self._posted = None
        if self._refused:
            raise Refused(self._refused)
        return posted.reply

    def close(self) -> None:
        """Stop the thread. If this agent is the merging agent, another agent takes over immediately."""
        with self._mutex:
            self._closed = True
            thread, posted = self._thread, self._posted
        self._wake()
        if posted is not None:
            posted.done.set()
        if thread is not None:
            thread.join(self._timing.statement)
            if thread.is_alive():  # the thread waits for the server, or for `merges`
                if self._rows is not None:
                    self._rows.interrupt()
                thread.join(self._timing.statement)
        if thread is None or not thread.is_alive():
            self._waking.close()
            self._woken.close()

    def _work(self) -> None:
        while not (self._closed or self._refused):
            works = False
            try:
                if self._rows is None:
                    from stallwatch_alerts.storage.cluster_rows import ClusterRows

                    patience = self._timing.statement
                    self._rows = ClusterRows(self._url, self._identity.key, self._agent, patience=patience)
                self._rows.connect()
                while not self._closed:
                    self._turn(self._rows, time.monotonic())
                    works = True
            except _LockLost:
                pass  # closing the connection also releases the lock
            except Exception as error:
                self._fail(error, works)
            finally:
                self._leave()
            if not (self._closed or self._refused or works):
                self._wait(self._timing.reconnect if self._posted is not None else self._timing.retry)

    def _turn(self, rows: ClusterRows, now: float) -> None:
        """Post a report, merge reports, or read replies, whichever is due. Then, wait for the next event."""
        posted = self._posted
        if posted is not None and posted.sent is None:
            rows.post(posted.report, posted.encoded, max(0.0, time.monotonic() - posted.came))
            posted.sent, posted.look_at = now, now
            self._has_posted, self._complained = True, False
        if self._has_posted and not self._merging and now >= self._compete_at:
            self._compete(rows, now)
        if self._merging and now >= self._merged_at + self._timing.gather:
            self._merge(rows, now)
        if posted is not None and posted.sent is not None and now >= posted.look_at:
            self._look(rows, posted, now)
        self._idle(rows)

    def _compete(self, rows: ClusterRows, now: float) -> None:
        self._compete_at = now + self._timing.retry
        if rows.try_to_merge():
            self._merging, self._merged_at, self._step_at = True, 0.0, now
            self._acknowledged.clear()
            # The reports of all agents are read, because they list the messages that each host sent, even if
            # the host is gone. Reports posted before this agent started belong to an earlier run with the
            # same name.
            rows.expect(rows.posted(time.monotonic() - self._began + _SLACK))
        elif rows.disconnect_merger(self._timing.frozen):
            self._compete_at = now + self._timing.gather

    def _merge(self, rows: ClusterRows, now: float) -> None:
        self._merged_at = now
        self._check(rows.still_merges())
        news = rows.news()
        reply: Reply | None = None
        for at in range(0, len(news), _AT_ONCE):
            for row in rows.read(news[at : at + _AT_ONCE]):
                answered = self._take(row)
                if answered is not None and answered.refused:
                    rows.refuse(row, answered.refused)
                elif answered is not None:
                    self._acknowledged |= answered.acknowledged
                    reply = answered
            self._check(rows.still_merges())
        if reply is not None:  # one reply contains the acknowledgements for all agents
            reply = msgspec.structs.replace(reply, acknowledged=self._acknowledged)
            self._check(rows.publish(msgspec.json.encode(reply)))
        if now >= self._step_at:
            self._step_at = now + self._timing.step
            try:
                self._merges.step()
            except Exception as error:
                self._skip("", f"{type(error).__name__}: {error}")

    def _take(self, row: Row) -> Reply | None:
        try:
            return self._merges.take(_read(row))
        except Exception as error:  # an invalid report must not delay other agents' reports
            self._skip(row.agent, str(error) or type(error).__name__)
            return None

    def _look(self, rows: ClusterRows, posted: _Posted, now: float) -> None:
        """Read the reply to the last post. The merging agent might not have read the post yet."""
        waited = now - (posted.sent or now)
        answer = rows.answer(posted.report.agent)
        if answer.silence > self._timing.absent:
            self._compete_at = min(self._compete_at, now)
        else:  # while this agent posts, each check of the reply also checks the heartbeat
            self._compete_at = now + _BEATS * self._timing.retry
        reply = self._reply(answer)
        taken = reply is not None and reply.acknowledged.get(posted.report.agent, -1) >= posted.report.number
        if taken or answer.refused or waited >= self._timing.acknowledgement:
            posted.reply = reply
            posted.done.set()
            with self._mutex:
                if self._posted is posted:
                    self._posted = None
        posted.look_at = now + max(_FIRST_LOOK, waited)

    def _reply(self, answer: Answer) -> Reply | None:
        if answer.reply is None or answer.silence > self._timing.frozen:
            return Reply(refused=answer.refused) if answer.refused else None
        try:
            reply = from_json(answer.reply, Reply)
        except NOT_JSON as error:
            self._skip("", str(error))
            return None
        if reply.v != VERSION:
            self._skip("", f"it has format {reply.v}, but this agent supports format {VERSION}")
            return None
        return msgspec.structs.replace(reply, refused=answer.refused)

    def _check(self, holds: bool) -> None:
        if not holds:
            raise _LockLost

    def _idle(self, rows: ClusterRows) -> None:
        now = time.monotonic()
        posted = self._posted
        ends = [self._merged_at + self._timing.beat] if self._merging else []
        if self._merging and rows.has_news():
            ends.append(self._merged_at + self._timing.gather)
        if self._has_posted and not self._merging:
            ends.append(self._compete_at)
        if posted is not None:
            ends.append(posted.look_at if posted.sent is not None else now)
        wait = max(0.0, min(ends) - now) if ends else self._timing.retry
        if not self._wait(wait, rows.fileno()):
            return
        if self._merging:
            self._wait(self._merged_at + self._timing.gather - time.monotonic())
        else:
            rows.check()

    def _wait(self, seconds: float, fileno: int | None = None) -> bool:
        """Wait for a post, for `close`, or for data from the server. Return whether the server sent data."""
        if seconds <= 0:
            return False
        with selectors.DefaultSelector() as selector:
            selector.register(self._woken, selectors.EVENT_READ)
            if fileno is not None:
                selector.register(fileno, selectors.EVENT_READ)
            ready = {key.fd for key, _ in selector.select(seconds)}
        with contextlib.suppress(BlockingIOError):
            while self._woken.fileno() in ready and self._woken.recv(1024):
                pass
        return fileno in ready

    def _wake(self) -> None:
        with contextlib.suppress(OSError):  # the buffer is full if the thread is already awake
            self._waking.send(b"\0")

    def _leave(self) -> None:
        """Close the connection, which releases the lock."""
        rows, merging = self._rows, self._merging
        self._merging, self._compete_at = False, 0.0
        if rows is None:
            return
        if merging and self._closed:
            # If this fails, other agents detect the missing heartbeat later.
            with contextlib.suppress(Exception):
                rows.resign()
        rows.disconnect()
        posted = self._posted
        if posted is not None:
            posted.sent = None

    def _fail(self, error: Exception, works: bool) -> None:
        """Report a connection problem, but only once while it lasts.

        If the connection worked before, the first failure is not reported, because a retry follows.
        """
        reason = error_line(error, self._url) or type(error).__name__
        if isinstance(error, ImportError):
            reason += " (run pip install 'stallwatch[postgres]')"
        if _is_final(error):
            self._refused = f"the database in [alerts] incidents_url rejects this agent: {reason}"
            if (posted := self._posted) is not None:
                posted.done.set()
        elif not (works or self._complained or self._closed):
            self._complained = True
            self._warn(f"the database in [alerts] incidents_url does not respond: {reason}")

    def _skip(self, agent: str, reason: str) -> None:
        """Report why an agent's report is left out, once for each agent.

        An empty `agent` means the merged report of all hosts.
        """
        if agent not in self._skipped:
            self._skipped.add(agent)
            subject = f"the report of {agent[:80]!r}" if agent else "the merged report of all hosts"
            self._warn(f"{subject} is ignored: {reason}")

    def _warn(self, line: str) -> None:
        with contextlib.suppress(Exception):
            self._notice(line)


def _is_final(error: Exception) -> bool:
    if isinstance(error, ImportError):
        return True
    from stallwatch_alerts.storage.cluster_rows import is_final

    return is_final(error)


def _read(row: Row) -> AgentReport:
    if row.report is None:
        raise ValueError(f"it has {row.size} bytes, but the maximum is {MOST_BYTES}")
    if row.version != VERSION:
        raise ValueError(f"it has format {row.version}, but this agent supports format {VERSION}")
    report = from_json(row.report, AgentReport)
    return msgspec.structs.replace(aged(report, row.age), age=report.age + row.age)
