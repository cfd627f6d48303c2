"""Read and write the rows of one run in PostgreSQL. Each agent uses one connection."""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, NullPool, TextClause, event, text
from sqlalchemy.exc import DBAPIError

from stallwatch_alerts.storage.engine import is_migrated, migrate, open_engine
from stallwatch_exporter.cluster.wire import MOST_BYTES, VERSION, AgentReport

_CONNECT_SECONDS = 2  # the shortest timeout that libpq accepts
_OPENING_SECONDS = 10.0  # maximum number of seconds for the queries that SQLAlchemy makes on a new connection
_MIGRATING_SECONDS = 60.0  # maximum seconds for the migration, because another agent might be migrating
_NOW = "extract(epoch FROM clock_timestamp())"

# With these settings, the server detects a lost host after about 11 s and releases the host's lock.
# PostgreSQL versions earlier than 12 have no `tcp_user_timeout`. `synchronous_commit` can be off, because
# reports that are lost in a crash of the server are reposted within a heartbeat.
_SETTINGS = {
    "tcp_keepalives_idle": "5",
    "tcp_keepalives_interval": "2",
    "tcp_keepalives_count": "3",
    "tcp_user_timeout": "11000",
    "synchronous_commit": "off",
}
_CLIENT_SETTINGS = {  # the corresponding settings of the client
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 11000,
}
_SET = text(
    "SELECT set_config(name, wanted.value, false) FROM pg_settings"
    " JOIN unnest(cast(:names AS text[]), cast(:values AS text[])) AS wanted(name, value) USING (name)"
)
_POST = text(
    "WITH posted AS ("
    "INSERT INTO cluster_reports (agent, key, host_id, attempt, number, version, updated_at, report)"
    f" VALUES (:agent, :key, :host_id, :attempt, :number, :version, {_NOW} - :waited, :report)"
    " ON CONFLICT (agent) DO UPDATE SET key = excluded.key, host_id = excluded.host_id,"
    " attempt = excluded.attempt, number = excluded.number, version = excluded.version,"
    " updated_at = excluded.updated_at, report = excluded.report, refused = ''"
    " RETURNING agent) SELECT pg_notify(:channel, agent) FROM posted"
)
_ANSWER = text(
    f"SELECT runs.reply, {_NOW} - runs.merged_at AS silence, posts.refused"
    " FROM cluster_reports AS posts LEFT JOIN cluster_runs AS runs ON runs.key = posts.key"
    " WHERE posts.agent = :agent"
)
_MERGE = text(
    "INSERT INTO cluster_runs (key, merger, session, merged_at)"
    f" SELECT :key, :agent, pg_backend_pid(), {_NOW} WHERE pg_try_advisory_lock(:lock)"
    " ON CONFLICT (key) DO UPDATE SET merger = excluded.merger, session = excluded.session,"
    " merged_at = excluded.merged_at, reply = NULL"
)
_MINE = "key = :key AND merger = :agent AND session = pg_backend_pid()"
_BEAT = text(f"UPDATE cluster_runs SET merged_at = {_NOW} WHERE {_MINE}")
_PUBLISH = text(f"UPDATE cluster_runs SET merged_at = {_NOW}, reply = :reply WHERE {_MINE}")
_RESIGN = text(f"UPDATE cluster_runs SET merged_at = 0 WHERE {_MINE}")
# The lock is a session-level lock. pg_locks identifies it by the upper and the lower half of its number
# (PostgreSQL manual, 54.12, pg_locks).
_DISCONNECT = text(
    "SELECT count(pg_terminate_backend(locks.pid)) FROM cluster_runs AS runs"
    " JOIN pg_locks AS locks ON locks.pid = runs.session AND locks.locktype = 'advisory' AND locks.granted"
    " AND (locks.classid::bigint << 32) | locks.objid::bigint = :lock AND locks.objsubid = 1"
    " AND locks.database = (SELECT oid FROM pg_database WHERE datname = current_database())"
    f" WHERE runs.key = :key AND {_NOW} - runs.merged_at > :seconds"
)
_POSTED = text(f"SELECT agent FROM cluster_reports WHERE key = :key AND updated_at >= {_NOW} - :seconds")
_READ = text(
    "SELECT agent, number, version, octet_length(report) AS size,"
    f" {_NOW} - updated_at AS age, CASE WHEN octet_length(report) <= :most THEN report END AS report"
    " FROM cluster_reports WHERE key = :key AND agent = ANY(:agents) ORDER BY updated_at"
)
_REFUSE = text("UPDATE cluster_reports SET refused = :reason WHERE agent = :agent AND number = :number")


@dataclass(frozen=True)
class Row:
    """A stored report with its version, size, and age."""

    agent: str
    number: int
    version: int
    size: int
    age: float  #: seconds since the report was posted
    report: bytes | None  #: None if the report is too large


@dataclass(frozen=True)
class Answer:
    """The response to a post: the reply to all agents, or the reason why the report was refused."""

    reply: bytes | None
    silence: float  #: seconds since the last heartbeat of the merging agent, or infinity if there was none
    refused: str


class ClusterRows:
    """One agent's access to the rows of the agent's run.

    A method raises an error if the server does not respond in time. After an exception, the connection is
    closed, which releases the merging agent's lock. Only `interrupt` is thread-safe.
    """

    def __init__(self, url: str, key: str, agent: str, *, patience: float) -> None:
        self._engine = open_engine(url, pool=NullPool, connect_timeout=_CONNECT_SECONDS, **_CLIENT_SETTINGS)
        # This listener runs before SQLAlchemy queries the new connection.
        event.listen(self._engine, "connect", self._opened, insert=True)
        self._key, self._agent = key, agent
        digest = hashlib.sha256(f"stallwatch {key}".encode()).digest()
        self._lock = int.from_bytes(digest[:8], "big", signed=True)
        self._channel = f"stallwatch_{digest.hex()[:16]}"
        self._patience = patience
        self._connection: Connection | None = None
        self._socket: socket.socket | None = None
        self._migrated = False
        self._news: set[str] = set()

    def connect(self) -> None:
        """Connect to the server and, if needed, create or migrate the tables."""
        connection = self._open()
        if not self._migrated:
            self.disconnect()  # the migration uses its own connection
            with self._in_time(_MIGRATING_SECONDS):
                migrate(self._engine)
            connection = self._open()
        driver: Any = connection.connection.driver_connection
        driver.add_notify_handler(lambda notify: self._news.add(notify.payload))
        settings = {**_SETTINGS, "statement_timeout": str(int(1000 * self._patience))}
        self._execute(_SET, names=list(settings), values=list(settings.values()))

    def disconnect(self) -> None:
        """Close the connection, which releases the lock, and discard the notifications received so far."""
        self.interrupt()
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(Exception):  # the server might be gone
                connection.invalidate()
                connection.close()
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        self._news.clear()

    def interrupt(self) -> None:
        """Break the connection from another thread, so that a pending wait fails with an error."""
        if self._socket is not None:
            with contextlib.suppress(OSError):  # the connection might have ended already
                self._socket.shutdown(socket.SHUT_RDWR)

    def fileno(self) -> int:
        """Return the file descriptor of the connection.

        In the merging agent, the descriptor becomes readable when another agent posts a report.
        """
        driver: Any = self._connection and self._connection.connection.driver_connection
        return int(driver.fileno())

    def post(self, report: AgentReport, encoded: bytes, waited: float) -> None:
        """Write this agent's report, which has waited `waited` seconds, and wake the merging agent."""
        self._execute(
            _POST,
            agent=report.agent,
            key=self._key,
            host_id=report.host_id,
            attempt=report.attempt,
            number=report.number,
            version=VERSION,
            waited=waited,
            report=encoded,
            channel=self._channel,
        )

    def answer(self, agent: str) -> Answer:
        """Return the response to the last post of `agent`."""
        row = self._execute(_ANSWER, agent=agent).one_or_none()
        if row is None:  # the row was deleted because of its age
            return Answer(None, float("inf"), "")
        return Answer(row.reply, float("inf") if row.silence is None else float(row.silence), row.refused)

    def try_to_merge(self) -> bool:
        """Try to become the merging agent by taking the run's lock. Return whether this agent got the lock.

        The server then notifies this agent of each post.
        """
        if self._execute(_MERGE, key=self._key, agent=self._agent, lock=self._lock).rowcount != 1:
            return False
        self._execute(text(f'LISTEN "{self._channel}"'))
        return True

    def disconnect_merger(self, seconds: float) -> bool:
        """If the agent that holds the lock sent no heartbeat for `seconds`, end the agent's database session.

        Return whether a session was ended.
        """
        try:
            return bool(self._execute(_DISCONNECT, key=self._key, lock=self._lock, seconds=seconds).scalar())
        except DBAPIError as error:
            # This agent is not allowed to end the session, but the server itself detects a lost host.
            if getattr(error.orig, "sqlstate", None) == _MAY_NOT:
                return False
            raise

    def still_merges(self) -> bool:
        """Update this agent's heartbeat. Return whether the agent's session still holds the lock."""
        return bool(self._execute(_BEAT, key=self._key, agent=self._agent).rowcount)

    def publish(self, reply: bytes) -> bool:
        """Write the reply to every agent of the run. Return whether this agent still merges the reports."""
        return bool(self._execute(_PUBLISH, key=self._key, agent=self._agent, reply=reply).rowcount)

    def refuse(self, row: Row, reason: str) -> None:
        """Record why an agent's report is not merged. The agent then reads the reason."""
        self._execute(_REFUSE, agent=row.agent, number=row.number, reason=reason[:1000])

    def resign(self) -> None:
        """Release the lock, so that another agent can merge the reports immediately."""
        self._execute(_RESIGN, key=self._key, agent=self._agent)

    def posted(self, seconds: float) -> list[str]:
        """Return the agents that posted reports in the last `seconds` seconds."""
        return list(self._execute(_POSTED, key=self._key, seconds=seconds).scalars())

    def check(self) -> None:
        """Receive the server's notifications. Raise an error if the server is gone."""
        self._execute(text("SELECT 1"))

    def expect(self, agents: Sequence[str]) -> None:
        """Mark the reports of these agents as unread, so that `news` returns the agents."""
        self._news.update(agents)

    def has_news(self) -> bool:
        """Return whether an agent has posted a report since the last call of `news`."""
        return bool(self._news)

    def news(self) -> list[str]:
        """Return the agents that have posted reports since the last call, as notified by the server."""
        found = list(self._news)
        self._news.clear()
        return found

    def read(self, agents: Sequence[str]) -> list[Row]:
        """Return the newest reports from these agents."""
        found = self._execute(_READ, key=self._key, agents=list(agents), most=MOST_BYTES)
        return [
            Row(row.agent, row.number, row.version, row.size, max(0.0, float(row.age)), row.report)
            for row in found
        ]

    def _execute(self, statement: TextClause, **values: Any) -> Any:
        if self._connection is None:
            raise ConnectionError("not connected")
        with self._in_time(self._patience):
            return self._connection.execute(statement, values)

    def _open(self) -> Connection:
        with self._in_time(_OPENING_SECONDS):
            self._connection = self._engine.execution_options(isolation_level="AUTOCOMMIT").connect()
            self._migrated = self._migrated or is_migrated(self._connection)
        return self._connection

    def _opened(self, connection: Any, _record: object) -> None:
        if self._socket is not None:
            self._socket.close()
        self._socket = socket.socket(fileno=os.dup(connection.fileno()))

    @contextlib.contextmanager
    def _in_time(self, seconds: float) -> Iterator[None]:
        """Break the connection after `seconds`, because psycopg 3.1 waits for a response indefinitely."""
        late = threading.Event()

        def give_up() -> None:
            late.set()
            self.interrupt()

        timer = threading.Timer(seconds, give_up)
        timer.daemon = True
        timer.start()
        try:
            yield
        except DBAPIError as error:
            if late.is_set():
                raise TimeoutError(f"no response within {seconds:g} s") from error
            raise
        finally:
            timer.cancel()


_MAY_NOT = "42501"  #: the SQLSTATE insufficient_privilege
_FINAL_STATES = (_MAY_NOT, "28P01", "28000", "3D000", "3F000")
_FINAL_WORDS = (
    "password authentication failed",
    "no password supplied",
    "no pg_hba.conf entry",
    "does not exist",
    "permission denied",
    "certificate authentication failed",
)


def is_final(error: BaseException) -> bool:
    """Return whether the error means that a retry cannot help, because the server refuses this agent.

    libpq reports login errors only as text.
    """
    if not isinstance(error, DBAPIError):
        return False
    state = getattr(error.orig, "sqlstate", None)
    if state is not None:
        return state in _FINAL_STATES
    return "FATAL" in str(error.orig) and any(word in str(error.orig) for word in _FINAL_WORDS)
