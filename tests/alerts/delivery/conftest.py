"""Databases of both kinds, a clock that tests move, and a faulty chat."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine

from stallwatch_alerts.channels.apprise_channel import AppriseChannel
from stallwatch_alerts.delivery.outbox import Outbox
from stallwatch_alerts.delivery.planning import Draft
from stallwatch_alerts.delivery.sender import Sender
from stallwatch_alerts.masking import mask_url
from stallwatch_alerts.notice import Notice, fingerprint, incident_notice
from stallwatch_alerts.storage.engine import open_engine, writing
from stallwatch_exporter.incident import Incident


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.server)])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the URL of an empty database; tests run once with each kind of database."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'alerts.db'}"
    url: str = request.getfixturevalue("postgres").new_database()
    return url


@pytest.fixture
def engine(database: str) -> Iterator[Engine]:
    made = open_engine(database)
    yield made
    made.dispose()


@pytest.fixture
def outbox(engine: Engine) -> Outbox:
    return Outbox(engine)


@pytest.fixture
def spool(tmp_path: Path) -> Iterator[Outbox]:
    """Yield an outbox on this host."""
    made = open_engine(f"sqlite:///{tmp_path / 'spool.db'}")
    yield Outbox(made)
    made.dispose()


class Clock:
    """Monotonic clock that the test moves."""

    def __init__(self, now: float = 1_800_000_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def set_wall_clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Return a function that shifts the wall clock by some seconds; the monotonic clock continues."""
    wall = time.time
    return lambda seconds: monkeypatch.setattr(time, "time", lambda: wall() + seconds)


class FaultyChat:
    """Chat server that answers the next requests by `script`, then accepts everything.

    A number is a status, a tuple is a status with headers and a body, bytes are sent unchanged, "hang" sends
    no answer until the client has closed the connection.
    """

    def __init__(self) -> None:
        self.script: list[Any] = []
        self.always: Any = None  #: answer to every request instead of accepting it
        self.requests = 0
        self.bodies: list[dict[str, Any]] = []
        self._changed = threading.Condition()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                with outer._changed:
                    outer.requests += 1
                    what = outer.script.pop(0) if outer.script else outer.always or 200
                    if what == 200:
                        outer.bodies.append(json.loads(body))
                    outer._changed.notify_all()
                outer._answer(self, what)

            def log_message(self, *args: object) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *args: object) -> None:
                pass

        self._server = Server(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def _answer(self, handler: BaseHTTPRequestHandler, what: Any) -> None:
        if what == "hang":
            handler.connection.recv(1)  # until the client closes the connection
            return
        if isinstance(what, bytes):
            handler.wfile.write(what)
            handler.close_connection = True
            return
        status, headers, body = what if isinstance(what, tuple) else (what, {}, b"")
        handler.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            handler.send_header(name, value)
        handler.end_headers()
        handler.wfile.write(body)

    @property
    def url(self) -> str:
        """Apprise URL with long timeouts: a late answer of a busy machine would cause a repeated message."""
        return f"json://127.0.0.1:{self._server.server_port}/hook-s3cr3t?cto=60&rto=60"

    def wait_for(self, count: int, seconds: float = 120) -> None:
        """Wait until `count` messages have been accepted."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.bodies) >= count, timeout=seconds), self.requests

    def wait_for_requests(self, count: int) -> None:
        """Wait until `count` requests have arrived, whatever their answers."""
        with self._changed:
            assert self._changed.wait_for(lambda: self.requests >= count, timeout=120)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def chat() -> Iterator[FaultyChat]:
    server = FaultyChat()
    yield server
    server.close()


@pytest.fixture
def notice(stall: Callable[..., Incident]) -> Callable[..., Notice]:
    """Return a function that builds the notice of a stall with changed fields."""
    return lambda **changes: incident_notice(stall(**changes), "en", None)


class Mail:
    """One chat's outbox, and a sender that the test drives."""

    def __init__(self, url: str, outbox: Outbox, clock: Clock, **given: Any) -> None:
        self.said: list[str] = []
        self.outbox = outbox
        self.clock = clock
        self.url = url
        self.channel = fingerprint(url)
        self.sender = Sender(
            url,
            outbox,
            given.pop("connect", AppriseChannel),
            clock=clock,
            report=self.said.append,
            start=False,
            **given,
        )

    def put(self, *notices: Notice, **given: Any) -> None:
        """Store messages in the outbox."""
        drafts = [
            Draft(
                self.channel,
                mask_url(self.url),
                str(notice.facts["run"]),
                notice,
                (notice.key,) if notice.key else (),
                str(notice.facts["id"]),
                **given,
            )
            for notice in notices
        ]
        self.outbox.put(lambda *_: drafts, self.clock.now)

    def pass_time(self, seconds: float, step: float = 1.0) -> None:
        """Advance the clock, and let the sender run every `step` seconds."""
        end = self.clock.now + seconds
        while self.clock.now < end:
            while self.sender.look():
                pass
            self.clock.now += step

    def states(self) -> list[str]:
        """Return the states of the messages, oldest first."""
        return [delivery.state for delivery in reversed(self.outbox.deliveries(limit=20_000))]


@pytest.fixture
def mail(chat: FaultyChat, spool: Outbox, clock: Clock) -> Mail:
    """Return a sender to the local chat from a local spool."""
    return Mail(chat.url, spool, clock)


@pytest.fixture
def mail_of(clock: Clock) -> Callable[..., Mail]:
    """Return a function that builds a sender to any chat from any outbox."""
    return lambda url, outbox, **given: Mail(url, outbox, clock, **given)


@pytest.fixture
def fill_disk() -> Callable[[Engine], None]:
    """Return a function that stops SQLite from adding pages: the error is the error of a full disk."""

    def full(engine: Engine) -> None:
        from sqlalchemy import event

        @event.listens_for(engine, "connect")
        def limit(connection: Any, _record: object) -> None:
            pages = connection.execute("PRAGMA page_count").fetchone()[0]
            connection.execute(f"PRAGMA max_page_count={pages}")

        engine.dispose()
        with writing(engine):
            pass

    return full
