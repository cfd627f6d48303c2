"""Attacks on /metrics and the relay by connections that send little, send slowly, or send two requests."""

from __future__ import annotations

import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Gauge
from rawhttp import request

from stallwatch_alerts.relay.relay import Relay
from stallwatch_alerts.settings import RelaySettings
from stallwatch_alerts.store import IncidentStore
from stallwatch_exporter.serving import connections
from stallwatch_exporter.serving.connections import BoundedHandler, BoundedServer, Peer
from stallwatch_exporter.serving.server import serve
from stallwatch_exporter.settings import ExporterSettings
from stallwatch_rules.pages.catalogue import Catalogue

Connect = Callable[[int], socket.socket]
HOST = "Host: 127.0.0.1"
ROOM = 4
FOLLOWER = b"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"


@pytest.fixture
def connect() -> Iterator[Connect]:
    """Opens connections, and closes them at the end."""
    made: list[socket.socket] = []

    def to(port: int) -> socket.socket:
        made.append(socket.create_connection(("127.0.0.1", port), timeout=120))
        return made[-1]

    yield to
    for connection in made:
        connection.close()


@pytest.fixture
def start(tmp_path: Path, catalogue: Catalogue) -> Iterator[Callable[..., int]]:
    """Starts /metrics or a relay; the port."""
    running: list[Any] = []

    def make(kind: str, **given: Any) -> int:
        if kind == "relay":
            store = IncidentStore.at_home(tmp_path)
            relay = Relay(RelaySettings(port=0), store, catalogue, report=lambda _: None)
            running.extend((relay, store))
            return relay.server.port
        registry = CollectorRegistry()
        Gauge("answer", "One number.", registry=registry).set(42)
        server = serve(registry, ExporterSettings(port=0, **given), pytest.fail)
        assert server is not None
        running.append(server)
        return int(server.url.rpartition(":")[2].partition("/")[0])

    yield make
    for item in running:
        item.close()


@pytest.fixture
def driven(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[BoundedServer, list[float]]]:
    """A server whose loop and time the test drives, with room for two."""

    class Handler(BoundedHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self.arrived()
            self.send_response_only(204)
            self.end_headers()

    now = [0.0]
    monkeypatch.setattr(BoundedServer, "clock", staticmethod(lambda: now[0]))
    monkeypatch.setattr(BoundedServer, "most", 2)
    with BoundedServer(("127.0.0.1", 0), Handler) as server:
        yield server, now


def raw(connection: socket.socket, data: bytes) -> bytes:
    """All that is answered until the server closes."""
    connection.sendall(data)
    with connection.makefile("rb") as stream:
        return stream.read()


@pytest.mark.parametrize("kind", ["metrics", "relay"])
def test_idle_connections_use_no_threads_and_do_not_block_answers(
    kind: str, start: Callable[..., int], connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten times as many idle connections as there is room for: the threads stay few, a scrape is answered."""
    monkeypatch.setattr(BoundedServer, "most", ROOM)
    port = start(kind)
    before = threading.active_count()
    idle = [connect(port) for _ in range(10 * ROOM)]
    assert request(port, "/metrics", HOST, "Connection: close").status == 200
    assert threading.active_count() <= before + ROOM
    assert idle[0].recv(1) == b""


def test_slow_request_is_ended_at_one_deadline(
    driven: tuple[BoundedServer, list[float]], connect: Connect
) -> None:
    """One byte within each timeout, indefinitely: the deadline is that of the request."""
    server, now = driven
    slow = connect(server.server_port)
    server.handle_request()
    for byte in b"GET / HTT":
        slow.sendall(bytes([byte]))
        now[0] += 1.0
        server.service_actions()
    now[0] += 1.0
    server.service_actions()
    assert slow.recv(1) == b""


def test_connection_after_its_first_answer_has_a_deadline(
    driven: tuple[BoundedServer, list[float]], connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request in time, then nothing more: the one that never comes has a deadline, too."""
    server, now = driven
    begun, one_request = threading.Semaphore(0), BoundedHandler.handle_one_request

    def counted(handler: BoundedHandler) -> None:
        begun.release()
        one_request(handler)

    monkeypatch.setattr(BoundedHandler, "handle_one_request", counted)
    honest = connect(server.server_port)
    server.handle_request()
    now[0] += 9.0
    server.service_actions()
    honest.sendall(b"GET / HTTP/1.1\r\n\r\n")
    assert b"204" in honest.makefile("rb").readline()
    assert begun.acquire(timeout=120) and begun.acquire(timeout=120)  # the answer is out
    while server.peers:  # its thread may not wait for the next request yet
        now[0] += 11.0
        server.service_actions()


def test_longest_waiting_connection_is_closed(
    driven: tuple[BoundedServer, list[float]], connect: Connect
) -> None:
    """The attacker's idle connections are ended, oldest first; later ones stay."""
    server, now = driven
    for _ in range(3):
        newest = connect(server.server_port)
        now[0] += 1.0
        server.handle_request()
    assert b"204" in raw(newest, b"GET / HTTP/1.0\r\n\r\n")


def test_next_connection_is_refused_if_all_are_active(
    monkeypatch: pytest.MonkeyPatch, connect: Connect
) -> None:
    """Long requests are not ended for others: the new connection is refused."""
    begun, go_on = threading.Semaphore(0), threading.Event()

    class Handler(BoundedHandler):
        def do_GET(self) -> None:
            self.arrived()
            begun.release()
            assert go_on.wait(120)
            self.send_response_only(204)
            self.end_headers()

    monkeypatch.setattr(BoundedServer, "most", 1)
    monkeypatch.setattr(BoundedServer, "seconds", 0.0)
    with BoundedServer(("127.0.0.1", 0), Handler) as server:
        busy, late = connect(server.server_port), connect(server.server_port)
        busy.sendall(b"GET / HTTP/1.1\r\n\r\n")
        server.handle_request()
        assert begun.acquire(timeout=120)
        server.handle_request()
        assert late.recv(1) == b""
        server.service_actions()
        go_on.set()
        with busy.makefile("rb") as stream:
            assert b"204" in stream.read()


def test_reader_that_reads_nothing_is_disconnected(
    driven: tuple[BoundedServer, list[float]], connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A scraper that asks for a long page and never reads it holds its thread for one deadline."""
    server, now = driven
    writing, ended = threading.Event(), threading.Event()

    def long(handler: BoundedHandler) -> None:
        handler.arrived()
        try:
            writing.set()
            handler.wfile.write(bytes(64 << 20))
        except OSError:
            ended.set()
            raise

    monkeypatch.setattr(server.RequestHandlerClass, "do_GET", long)
    greedy = connect(server.server_port)
    greedy.sendall(b"GET / HTTP/1.1\r\n\r\n")
    server.handle_request()
    assert writing.wait(120)
    assert greedy.recv(1) == b"\0"  # so the write has begun, and its deadline is set
    now[0] += 11.0
    server.service_actions()
    assert ended.wait(120)


def test_announced_body_that_is_never_sent_has_a_deadline(
    driven: tuple[BoundedServer, list[float]], connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`Expect: 100-continue`, then nothing: the deadline outlasts the server's "100 Continue"."""
    server, now = driven
    reading = threading.Event()

    def post(handler: BoundedHandler) -> None:
        reading.set()
        handler.rfile.read(5)

    monkeypatch.setattr(server.RequestHandlerClass, "do_POST", post, raising=False)
    silent = connect(server.server_port)
    silent.sendall(b"POST / HTTP/1.1\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n")
    server.handle_request()
    assert reading.wait(120)
    now[0] += 11.0
    server.service_actions()
    with silent.makefile("rb") as stream:
        assert stream.read() == b"HTTP/1.1 100 Continue\r\n\r\n"


@pytest.mark.parametrize(("pieces", "is_whole"), [(5, True), (10, False)])
def test_slow_reader_is_served_if_each_piece_is_in_time(
    driven: tuple[BoundedServer, list[float]],
    connect: Connect,
    monkeypatch: pytest.MonkeyPatch,
    pieces: int,
    is_whole: bool,
) -> None:
    """A page over a slow connection is no attack, unless it takes longer than a minute."""
    server, now = driven
    monkeypatch.setattr(BoundedServer, "piece", 4)
    send = socket.socket.sendall
    page = b"page" * pieces

    def slowly(connection: socket.socket, data: Any) -> None:
        if connection.getsockname()[1] == server.server_port:
            now[0] += 9.0 * len(data) / BoundedServer.piece
            server.service_actions()
        send(connection, data)

    def answer(handler: BoundedHandler) -> None:
        handler.arrived()
        handler.close_connection = True
        handler.wfile.write(page)

    monkeypatch.setattr(server.RequestHandlerClass, "do_GET", answer)
    monkeypatch.setattr(socket.socket, "sendall", slowly)
    scraper = connect(server.server_port)
    server.handle_request()
    assert (raw(scraper, b"GET / HTTP/1.1\r\n\r\n") == page) is is_whole


@pytest.mark.parametrize(("pieces", "is_whole"), [(5, True), (10, False)])
def test_slow_notification_is_accepted_if_each_piece_is_in_time(
    start: Callable[..., int],
    connect: Connect,
    monkeypatch: pytest.MonkeyPatch,
    pieces: int,
    is_whole: bool,
) -> None:
    """A long body over a slow connection is no attack, unless it takes longer than a minute."""
    now = [0.0]
    setup = BoundedHandler.setup
    monkeypatch.setattr(BoundedServer, "clock", staticmethod(lambda: now[0]))
    monkeypatch.setattr(BoundedServer, "piece", 4)

    def slow(handler: BoundedHandler) -> None:
        setup(handler)
        read = handler.rfile.read

        def slowly(size: int) -> bytes:
            now[0] += 9.0 * size / BoundedServer.piece
            handler.server.service_actions()
            return read(size)

        monkeypatch.setattr(handler.rfile, "read", slowly)

    monkeypatch.setattr(BoundedHandler, "setup", slow)
    head = (
        f"POST /alertmanager HTTP/1.1\r\n{HOST}\r\nConnection: close\r\nContent-Length: {4 * pieces}\r\n\r\n"
    )
    answer = raw(connect(start("relay")), head.encode() + b"junk" * pieces)
    assert answer.startswith(b"HTTP/1.1 400 ") is is_whole


def test_idle_time_does_not_count_for_the_next_request(
    driven: tuple[BoundedServer, list[float]], connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """9 s of silence between two requests, each of which takes 9 s to come: both are answered."""
    server, now = driven
    given = threading.Semaphore(0)
    deadline, parse = BoundedServer.next_deadline, BoundedHandler.parse_request

    def counted(server: BoundedServer) -> float:
        due = deadline(server)
        given.release()
        return due

    def slowly(handler: BoundedHandler) -> bool:
        now[0] += 9.0
        server.service_actions()
        return parse(handler)

    monkeypatch.setattr(BoundedServer, "next_deadline", counted)
    monkeypatch.setattr(BoundedHandler, "parse_request", slowly)
    honest = connect(server.server_port)
    server.handle_request()
    honest.sendall(b"GET / HTTP/1.1\r\n\r\n")
    for _ in range(3):  # of the first request, of its answer, of the silence
        assert given.acquire(timeout=120)
    now[0] += 9.0
    answers = raw(honest, b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n")
    assert answers.count(b"204") == 2


def test_closing_server_ends_idle_connections(
    driven: tuple[BoundedServer, list[float]], connect: Connect
) -> None:
    """Connections without a request do not outlive the server, which alone would have ended them."""
    server, _ = driven
    idle = connect(server.server_port)
    server.handle_request()
    server.server_close()
    assert idle.recv(1) == b""


def test_closing_server_does_not_wait_for_its_polling_interval(
    driven: tuple[BoundedServer, list[float]],
) -> None:
    """The end of a run is not delayed; otherwise, the test's own limit ends it."""
    server, _ = driven
    begun = threading.Event()
    server.service_actions = begun.set  # type: ignore[method-assign]
    loop = threading.Thread(target=server.serve_forever, args=(3600.0,), daemon=True)
    loop.start()
    with socket.create_connection(server.server_address[:2]):
        assert begun.wait(120)  # the loop turns, and goes back to its long look
    server.shutdown()
    loop.join()


def test_closing_server_completes_an_answer(
    driven: tuple[BoundedServer, list[float]], connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last scrape of a run, which may still be under way, is answered."""
    server, _ = driven
    begun, closing = threading.Event(), threading.Event()
    end = Peer.end

    def ended(peer: Peer, how: int) -> None:
        end(peer, how)
        closing.set()

    def answer(handler: BoundedHandler) -> None:
        handler.arrived()
        begun.set()
        assert closing.wait(120)
        handler.wfile.write(b"page")

    monkeypatch.setattr(connections, "_LEAVING", 120.0)
    monkeypatch.setattr(Peer, "end", ended)
    monkeypatch.setattr(server.RequestHandlerClass, "do_GET", answer)
    scraper = connect(server.server_port)
    scraper.sendall(b"GET / HTTP/1.1\r\n\r\n")
    server.handle_request()
    assert begun.wait(120)
    server.server_close()
    with scraper.makefile("rb") as stream:
        assert stream.read() == b"page"


def test_connection_without_a_tls_handshake_does_not_block_others(
    start: Callable[..., int], connect: Connect, tmp_path: Path
) -> None:
    """One connection that never begins its handshake: others are served."""
    openssl = shutil.which("openssl")
    assert openssl, "openssl is needed"
    pem, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    subprocess.run(
        f"{openssl} req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2"
        f" -subj /CN=127.0.0.1 -addext subjectAltName=IP:127.0.0.1 -keyout {key} -out {pem}".split(),
        check=True,
        capture_output=True,
    )
    port = start("metrics", tls_certificate=pem, tls_key=key)
    connect(port)
    trusting = ssl.create_default_context(cafile=str(pem))
    with trusting.wrap_socket(connect(port), server_hostname="127.0.0.1") as scraper:
        assert b"answer 42.0" in raw(scraper, FOLLOWER)


@pytest.mark.parametrize(
    "headers",
    [
        b"Content-Length: 5\r\nTransfer-Encoding: chunked",
        b"Transfer-Encoding: identity\r\nContent-Length: 2",
        b"Content-Length: 2\r\nContent-Length: 40",
        b"Content-Length: 2\r\nContent-Length: 2",
        b"Content-Length: 2\r\nX : hides what follows\r\nContent-Length: 40",
    ],
)
def test_request_with_two_lengths_is_refused_and_the_rest_is_not_read(
    start: Callable[..., int], connect: Connect, headers: bytes
) -> None:
    """What a proxy takes for the body must not become a second request to the relay."""
    ambiguous = b"POST /alertmanager HTTP/1.1\r\nHost: 127.0.0.1\r\n" + headers + b"\r\n\r\n{}" + FOLLOWER
    answers = raw(connect(start("relay")), ambiguous)
    assert answers.startswith(b"HTTP/1.1 400 ") and answers.count(b"HTTP/1.1 ") == 1


def test_body_of_a_get_is_not_a_second_request(start: Callable[..., int], connect: Connect) -> None:
    """A request within the body of one that must have no body goes unanswered."""
    smuggled = b"GET /-/healthy HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 43\r\n\r\n" + FOLLOWER
    answers = raw(connect(start("relay")), smuggled)
    assert answers.startswith(b"HTTP/1.1 200 ") and answers.count(b"HTTP/1.1 ") == 1


def test_truncated_body_is_not_a_notification(start: Callable[..., int], connect: Connect) -> None:
    """A connection that is cut within a body is neither stored nor answered."""
    connection = connect(start("relay"))
    connection.sendall(b"POST /alertmanager HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 40\r\n\r\n{}")
    connection.shutdown(socket.SHUT_WR)
    with connection.makefile("rb") as stream:
        assert stream.read() == b""
