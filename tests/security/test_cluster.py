"""Attacks on the ports at which the agents of a run meet, and on their messages."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zstandard
from clusterhosts import KEY, Cluster, Host, Recorder, cluster, hasty, report
from rawhttp import Answer, request
from waiting import wait_until

from stallwatch_exporter.cluster import client, host, peer, server
from stallwatch_exporter.cluster.secrets import HOW_TO_JOIN, SecretSource
from stallwatch_exporter.cluster.server import ClusterServer, Notices, OtherHosts
from stallwatch_exporter.cluster.signing import HELLO, REPORTS, Malformed, Proof, Signer, unpack
from stallwatch_exporter.cluster.wire import MOST_BYTES, MOST_REPORTS, Post
from stallwatch_exporter.serving.connections import BoundedHandler
from stallwatch_exporter.settings import JoinSettings

SECRET = "correct horse"
POST = msgspec.json.encode(Post(reports=[report("eve", "h1")]))


@pytest.fixture
def two(tmp_path: Path) -> Iterator[Cluster]:
    """A run of two hosts."""
    with cluster(tmp_path, hosts=2) as made:
        yield made


@pytest.fixture
def victim(two: Cluster) -> Host:
    """An agent that listens."""
    first = two.start(0)
    assert first.post()
    return first


def send(
    port: int,
    body: bytes = POST,
    *headers: str,
    secret: str = SECRET,
    method: str = "POST",
    path: str = REPORTS,
    **said: Any,
) -> Answer:
    """Send what an attacker who knows the secret could send."""
    proof = Proof(**{"key": KEY, "agent": "eve", "number": 1, "to": "agent0", **said})
    header = Signer(secret.encode(), proof.key).sign(method, path, proof, body).header
    return request(port, path, f"Authorization: {header}", *headers, method=method, body=body)


def statuses(port: int, *bodies: bytes, headers: tuple[str, ...] = ()) -> list[int]:
    return [send(port, body, *headers, number=number).status for number, body in enumerate(bodies, 1)]


def test_unmodified_base_post_of_the_attacks_is_accepted(two: Cluster, victim: Host) -> None:
    assert send(two.port).status == 200
    assert send(two.port, b"", method="GET", path=HELLO).status == 200
    assert victim.merges.agents == ["agent0", "eve"] and victim.notes == []


@pytest.mark.parametrize("secret", ["", "wrong horse", SECRET[:-1]])
def test_post_with_a_wrong_secret_is_refused(secret: str, two: Cluster, victim: Host) -> None:
    assert send(two.port, secret=secret).status == 401
    assert send(two.port, b"", secret=secret, method="GET", path=HELLO).status == 401
    assert victim.merges.agents == ["agent0"]
    assert victim.notes == ["refused an agent at 127.0.0.1: it uses a different secret"]


@pytest.mark.parametrize(
    "header", ["", "Bearer correct horse", "Stallwatch-HMAC-SHA256", "Stallwatch-HMAC-SHA256 " + "a" * 60_000]
)
def test_post_without_proof_is_refused(header: str, two: Cluster, victim: Host) -> None:
    answer = request(two.port, REPORTS, f"Authorization: {header}", method="POST", body=POST)
    assert answer.status == 401
    assert victim.notes == ["refused an agent at 127.0.0.1: it does not prove that it belongs to this run"]


@pytest.mark.parametrize(
    "changed",
    [{"agent": "mallory"}, {"number": 2}, {"to": "agent1"}, {"digest": "0" * 64}, {"key": KEY[::-1]}],
)
def test_post_with_any_changed_signed_part_is_refused(
    changed: dict[str, Any], two: Cluster, victim: Host
) -> None:
    signed = Signer(SECRET.encode(), KEY).sign("POST", REPORTS, Proof(KEY, "eve", 1, "agent0"), POST)
    header = f"Authorization: {signed._replace(**changed).header}"
    assert request(two.port, REPORTS, header, method="POST", body=POST).status in (401, 404)
    header = f"Authorization: {signed.header}"
    assert request(two.port, f"{REPORTS}?", header, method="POST", body=POST).status == 401
    assert request(two.port, REPORTS, header, method="POST", body=POST.replace(b"n0", b"n9")).status == 400
    assert victim.merges.agents == ["agent0"]


def test_replayed_post_is_refused(two: Cluster, victim: Host) -> None:
    """A recorded post cannot be sent again, neither to its recipient nor to the successor."""
    assert statuses(two.port, POST) == [200]
    assert statuses(two.port, POST) == [401]
    assert victim.notes == ["refused a post from eve at 127.0.0.1: it repeats an earlier request"]
    victim.backing.close()
    returned = two.start(0, agent="returned")
    assert returned.post()
    assert statuses(two.port, POST) == [421]
    assert returned.merges.agents == ["returned"]


def test_posts_of_another_run_are_not_merged(two: Cluster, victim: Host) -> None:
    other = msgspec.json.encode(Post(reports=[report("eve", key=KEY[::-1])]))
    mixed = msgspec.json.encode(Post(reports=[report("eve"), report("eve", key=KEY[::-1])]))
    assert send(two.port, other, key=KEY[::-1]).status == 404
    assert statuses(two.port, other, mixed) == [400, 400]
    assert victim.merges.agents == ["agent0"]
    assert victim.notes == ["refused a post from eve at 127.0.0.1: it contains reports from another run"]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"\xff\xfe",
        b'{"reports":[{}]}',
        b'{"reports":[]}',
        b'{"reports":' + b"[" * 100_000,
        b'{"unknown":' + b"[" * 100_000 + b"]" * 100_000 + b',"reports":[]}',
        msgspec.json.encode(Post(reports=[report("eve")] * (MOST_REPORTS + 1))),
        msgspec.json.encode({"reports": [{**msgspec.to_builtins(report("eve")), "phase": "\x1b[31m"}]}),
    ],
)
def test_malformed_post_is_refused_in_one_line(body: bytes, two: Cluster, victim: Host) -> None:
    assert send(two.port, body).status in (400, 411)
    (note,) = victim.notes
    assert note.startswith("refused a post from eve at 127.0.0.1: it ") and "\x1b" not in note
    assert victim.merges.agents == ["agent0"]


@pytest.mark.parametrize(
    "body", [zstandard.compress(bytes(128 << 20)), zstandard.compress(b'"' + b" " * MOST_BYTES)]
)
def test_compression_bomb_is_not_expanded(body: bytes, two: Cluster, victim: Host) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(Malformed):
            unpack(body, "zstd")
        assert tracemalloc.get_traced_memory()[1] < 16 * MOST_BYTES
    finally:
        tracemalloc.stop()
    assert send(two.port, body, "Content-Encoding: zstd").status == 413
    assert victim.notes == ["refused a post from eve at 127.0.0.1: it is larger than 1,048,576 bytes"]


def test_other_and_broken_compressions_are_refused(two: Cluster, victim: Host) -> None:
    assert statuses(two.port, b"not packed", headers=("Content-Encoding: zstd",)) == [400]
    assert send(two.port, b"not packed", "Content-Encoding: gzip", number=2).status == 415


def test_oversized_post_is_refused_without_reading_it(two: Cluster, victim: Host) -> None:
    """The answer comes although nothing of the body is sent."""
    signed = Signer(SECRET.encode(), KEY).sign("POST", REPORTS, Proof(KEY, "eve", 1, "agent0"), b"")
    for length in (str(MOST_BYTES + 1), "9" * 5000):
        headers = (f"Authorization: {signed.header}", f"Content-Length: {length}")
        assert request(two.port, REPORTS, *headers, method="POST").status == 413
        signed = Signer(SECRET.encode(), KEY).sign("POST", REPORTS, Proof(KEY, "eve", 2, "agent0"), b"")


def test_version_mismatch_is_reported_on_both_sides(
    two: Cluster, victim: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    newer = msgspec.json.encode({"v": 3, "reports": "of another form"})
    assert send(two.port, newer).status == 426
    assert send(two.port, b"", method="GET", path="/cluster/v3/hello").status == 426
    assert victim.notes == [
        "refused a post from eve at 127.0.0.1: it uses version 3 of the protocol; this agent uses version 2;"
        " install the same version of Stallwatch on all hosts"
    ]
    monkeypatch.setattr(peer, "HELLO", "/cluster/v3/hello")
    second = two.start(1)
    assert second.post()
    (note,) = second.notes
    assert note.endswith(
        "it uses a different version of the protocol; install the same Stallwatch version on all hosts"
    )
    assert second.merges.agents == ["agent1"]


def test_secret_mismatch_is_reported_on_both_sides(two: Cluster, victim: Host) -> None:
    second = two.start(1, secret="another")
    for _ in range(3):
        assert second.post()
        two.now += peer.RETRY_SECONDS
    assert victim.merges.agents == ["agent0"] and second.merges.agents == ["agent1"] * 3
    assert victim.notes == ["refused an agent at 127.0.0.1: it uses a different secret"]
    assert second.notes == [
        f"127.0.0.1:{two.port} does not accept the reports of this host: "
        f"it uses a different secret; {HOW_TO_JOIN}"
    ]


def test_reply_of_an_impostor_coordinator_is_rejected(two: Cluster) -> None:
    """It answers like a coordinator, and repeats the signature that it got."""

    class Fake(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            body = b'{"v":1,"agent":"agent0","host_id":"host0"}'
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Stallwatch-Signature", self.headers["Authorization"][-64:])
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", two.port), Fake) as fake:
        threading.Thread(target=fake.serve_forever, daemon=True).start()
        second = two.start(1)
        reply = second.post()
        fake.shutdown()
    assert reply is not None and reply.coordinator == "agent1"
    assert second.notes == [
        f"127.0.0.1:{two.port} does not accept the reports of this host:"
        " its response is not signed with the secret of the run,"
        " so a different program might use this port"
    ]


def test_reply_is_valid_for_one_request_only() -> None:
    signer = Signer(b"secret", KEY)
    first, second = (signer.sign("GET", HELLO, Proof(KEY, "a", number, ""), b"") for number in (1, 2))
    reply = signer.reply(first, 200, b"{}")
    assert signer.is_reply(first, 200, b"{}", reply)
    assert not signer.is_reply(second, 200, b"{}", reply)
    assert not signer.is_reply(first, 409, b"{}", reply)
    assert not signer.is_reply(first, 200, b"{ }", reply)
    assert not signer.is_reply(first, 200, b"{}", "é")


def test_endless_reply_is_cut_off(two: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """One byte within each timeout, indefinitely."""
    hasty(monkeypatch, 0.5)
    go_on = threading.Event()

    def dribble(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection:
            connection.sendall(b"HTTP/1.1 200 OK\r\nX: ")
            while not go_on.wait(0.02):
                try:
                    connection.sendall(b"x")
                except OSError:
                    return

    with socket.create_server(("127.0.0.1", two.port)) as listener:
        threading.Thread(target=dribble, args=(listener,), daemon=True).start()
        reply = two.start(1).post()
        wait_until(lambda: "stallwatch-cluster-peer" not in [thread.name for thread in threading.enumerate()])
        go_on.set()
    assert reply is not None and reply.coordinator == "agent1"


def test_post_of_a_disconnected_sender_is_not_merged(
    two: Cluster, victim: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a coordinator was stopped for a while: its senders have posted to another one since."""
    come, gone = threading.Event(), threading.Event()
    read = BoundedHandler.body

    def late(handler: BoundedHandler, length: int) -> bytes:
        body = read(handler, length)
        come.set()
        assert gone.wait(60)
        return body

    monkeypatch.setattr(BoundedHandler, "body", late)
    signed = Signer(SECRET.encode(), KEY).sign("POST", REPORTS, Proof(KEY, "eve", 1, "agent0"), POST)
    head = f"POST {REPORTS} HTTP/1.1\r\nAuthorization: {signed.header}\r\nContent-Length: {len(POST)}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", two.port)) as connection:
        connection.sendall(head.encode() + POST)
        assert come.wait(60)
    gone.set()
    served = victim.backing._server
    assert served is not None
    wait_until(lambda: not served._server.peers)
    assert victim.merges.agents == ["agent0"] and victim.notes == []


def test_idle_connections_do_not_block_agents(
    two: Cluster, victim: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If more connections come than there is room for, the slowest one is ended."""
    served = victim.backing._server
    assert served is not None
    served._server.most = 8
    idle = [socket.create_connection(("127.0.0.1", two.port)) for _ in range(20)]
    second = two.start(1)
    assert second.post()
    assert "agent1" in victim.merges.agents
    for connection in idle:
        connection.close()


@pytest.mark.parametrize(("length", "status"), [(20_000, 401), (26_000, 431)])
def test_size_of_a_request_head_is_bounded(length: int, status: int, two: Cluster, victim: Host) -> None:
    """Not only each of its lines: a hundred of them, in each of many connections, are gigabytes."""
    headers = ["X-1: " + "x" * 40_000, "X-2: " + "x" * length]
    assert request(two.port, HELLO, *headers).status == status


def test_secret_is_never_sent(two: Cluster, tmp_path: Path) -> None:
    """Neither the wire nor a message shows it, in whatever form."""
    seen: list[bytes] = []
    send_all = socket.socket.sendall

    def heard(connection: socket.socket, data: bytes) -> None:
        seen.append(bytes(data))
        send_all(connection, data)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket.socket, "sendall", heard)
        first, second, stranger = two.start(0), two.start(1), two.start(1, host_id="x", secret="another")
        assert first.post() and second.post() and stranger.post()
    everything = b"".join(seen) + "".join([*first.notes, *second.notes, *stranger.notes]).encode()
    assert b"Stallwatch-HMAC-SHA256 key=" in everything
    for secret in (SECRET.encode(), b"another"):
        assert secret not in everything.replace(b"another one", b"").replace(b"another secret", b"")


def test_port_is_not_opened_without_a_secret(two: Cluster, tmp_path: Path) -> None:
    (tmp_path / "join").touch()  # in the place of the folder
    alone = two.start(0, secret="")
    reply = alone.post()
    assert reply is not None and reply.coordinator == "agent0"
    assert alone.backing.address == ""
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", two.port))
    (note,) = alone.notes
    assert note.endswith(HOW_TO_JOIN)


def test_agents_with_a_common_state_folder_share_a_secret(two: Cluster, tmp_path: Path) -> None:
    first, second = two.start(0, secret=""), two.start(1, secret="")
    assert first.post() and second.post()
    assert first.merges.agents == ["agent0", "agent1"]
    path = tmp_path / "join" / KEY
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    assert len(path.read_bytes()) == 64


def test_agents_with_separate_state_folders_stay_separate(two: Cluster, tmp_path: Path) -> None:
    first, second = (two.start(node, secret="", home=tmp_path / str(node)) for node in range(2))
    assert first.post() and second.post()
    assert first.merges.agents == ["agent0"] and second.merges.agents == ["agent1"]
    assert HOW_TO_JOIN in second.notes[0]


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o622])
def test_secret_that_others_can_read_or_write_is_not_used(mode: int, two: Cluster, tmp_path: Path) -> None:
    (tmp_path / "join").mkdir(mode=0o700)
    path = tmp_path / "join" / KEY
    path.write_text("a" * 64)
    path.chmod(mode)
    alone = two.start(0, secret="")
    assert alone.post() and alone.backing.address == ""
    assert alone.notes == [
        f"this agent cannot join other hosts: {path}: the file is not private to this account; {HOW_TO_JOIN}"
    ]


def test_secret_of_another_account_is_not_used(
    eves: Callable[..., Path], two: Cluster, tmp_path: Path
) -> None:
    (tmp_path / "join").mkdir(mode=0o700)
    path = tmp_path / "join" / KEY
    path.write_text("a" * 64)
    path.chmod(0o600)
    eves(path)
    alone = two.start(0, secret="")
    assert alone.post() and alone.backing.address == ""


@pytest.mark.parametrize("kind", ["link", "pipe", "open folder"])
def test_special_file_in_place_of_the_secret_is_not_used(kind: str, two: Cluster, tmp_path: Path) -> None:
    (tmp_path / "join").mkdir(mode=0o700)
    path = tmp_path / "join" / KEY
    if kind == "link":
        (tmp_path / "elsewhere").write_text("a" * 64)
        (tmp_path / "elsewhere").chmod(0o600)
        path.symlink_to(tmp_path / "elsewhere")
    elif kind == "pipe":
        os.mkfifo(path, 0o600)
    else:
        path.parent.chmod(0o777)
    alone = two.start(0, secret="")
    assert alone.post() and alone.backing.address == ""
    assert len(alone.notes) == 1


def test_agent_waits_for_a_secret_that_is_being_written(two: Cluster, tmp_path: Path) -> None:
    """Another host has made the file, and the network file system shows it empty for a while."""
    (tmp_path / "join").mkdir(mode=0o700)
    path = tmp_path / "join" / KEY
    path.touch(0o600)
    first = two.start(0, secret="")
    assert first.post() and first.backing.address == "" and first.notes == []
    path.write_text("a" * 64)
    assert first.post() and first.backing.address != ""


def test_secret_that_is_never_written_is_reported(tmp_path: Path) -> None:
    (tmp_path / "join").mkdir(mode=0o700)
    (tmp_path / "join" / KEY).touch(0o600)
    source = SecretSource(JoinSettings(), tmp_path, KEY)
    assert source.get(1000.0) is None and source.get(1089.0) is None
    with pytest.raises(Exception, match="does not contain a secret"):
        source.get(1090.0)


def test_secrets_of_old_runs_are_removed(tmp_path: Path) -> None:
    folder = tmp_path / "join"
    folder.mkdir(mode=0o700)
    for name, age in (("old", 8), ("new", 6)):
        (folder / name).write_text("a" * 64)
        os.utime(folder / name, (1.0, (folder / name).stat().st_mtime - age * 86400))
    assert SecretSource(JoinSettings(), tmp_path, KEY).get(0.0) is not None
    assert sorted(path.name for path in folder.iterdir()) == sorted([KEY, "new"])


def test_long_run_keeps_its_secret(two: Cluster, tmp_path: Path) -> None:
    first = two.start(0, secret="")
    assert first.post()
    path = tmp_path / "join" / KEY
    os.utime(path, (1.0, 1.0))
    two.now += client._KEPT_SECONDS + 1
    assert first.post()
    wait_until(lambda: path.stat().st_mtime > 1.0)


@pytest.fixture
def certificates(tmp_path: Path) -> Callable[[str], dict[str, Any]]:
    """Make the certificate of an authority that is its only member."""
    openssl = shutil.which("openssl")
    assert openssl, "openssl is needed"

    def make(name: str) -> dict[str, Any]:
        certificate, key = tmp_path / f"{name}.pem", tmp_path / f"{name}.key"
        subprocess.run(
            f"{openssl} req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2"
            f" -subj /CN={name} -keyout {key} -out {certificate}".split(),
            check=True,
            capture_output=True,
        )
        return {"tls_certificate": certificate, "tls_key": key, "tls_ca": certificate, "secret": ""}

    return make


def test_certificates_replace_the_secret(two: Cluster, certificates: Callable[[str], dict[str, Any]]) -> None:
    run = certificates("run")
    first, second = two.start(0, **run), two.start(1, **run)
    assert first.post() and second.post() and second.post()
    assert first.merges.agents == ["agent0", "agent1", "agent1"]
    assert first.notes == second.notes == []
    assert not (two.home / "join").exists()


def test_certificate_of_another_authority_is_refused_on_both_sides(
    two: Cluster, certificates: Callable[[str], dict[str, Any]]
) -> None:
    run, other = certificates("run"), certificates("other")
    first = two.start(0, **run)
    second = two.start(1, **other)
    third = two.start(
        2, host_id="third", agent="third", identity=two.identity(1), **{**other, "tls_ca": run["tls_ca"]}
    )
    for one in (first, second, third):
        assert one.post()
    assert first.merges.agents == ["agent0"]
    wait_until(lambda: first.notes)
    assert first.notes[0].startswith(
        "refused an agent at 127.0.0.1: it did not present a certificate of the run"
    )
    for one in (second, third):
        assert "certificate" in one.notes[0]


@pytest.mark.parametrize("missing", ["tls_certificate", "tls_key", "tls_ca"])
def test_incomplete_certificates_are_refused(
    missing: str, two: Cluster, certificates: Callable[[str], dict[str, Any]]
) -> None:
    alone = two.start(0, **{**certificates("run"), missing: None})
    assert alone.post() and alone.backing.address == ""
    assert alone.notes == [
        f"this agent cannot join other hosts: set join.{missing}, because mutual TLS needs all three files"
    ]


def test_other_account_in_place_of_the_host_agent_gets_no_report(
    two: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Abstract names of sockets are for everybody: the kernel says whose process is at the other end."""
    rank = two.start(0)
    name = host.socket_name(two.home / "join", KEY, rank.host_id)
    assert name is not None
    squatter = host.bind(name)
    assert squatter is not None
    monkeypatch.setattr(peer, "is_own_peer", lambda _: False)
    with squatter:
        squatter.settimeout(60)
        assert rank.post()
        connection, _ = squatter.accept()
        with connection:
            assert connection.recv(1) == b""
    assert rank.merges.agents == ["agent0"]
    assert rank.notes == [
        "cannot use the agent that posts the reports of this host ([Errno 1] it belongs to another account);"
        " this agent posts its own reports"
    ]


def test_other_account_on_the_host_cannot_post(two: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    first = two.start(0)
    assert first.post()
    monkeypatch.setattr(server, "is_own_peer", lambda _: False)
    other = two.start(0, agent="other", secret="", home=two.home / "x")
    assert other.post()
    assert first.merges.agents == ["agent0"]


def test_stuck_agent_on_the_host_does_not_block_other_agents(two: Cluster) -> None:
    """It connects, announces a long post, and never sends it."""
    first = two.start(0)
    assert first.post()
    name = host.socket_name(two.home / "join", KEY, first.host_id)
    assert name is not None
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stuck:
        stuck.connect(name)
        stuck.sendall(f"POST {REPORTS} HTTP/1.1\r\nContent-Length: 1000\r\n\r\n".encode())
        sibling = two.start(0, agent="sibling")
        assert first.post() and sibling.post()
    assert first.merges.agents == ["agent0", "agent0", "sibling"]


def test_service_keeps_many_runs_separate(two: Cluster) -> None:
    """One secret for all runs: the proof for one run is invalid for another, and no run can be invented."""
    merged: dict[str, Recorder] = {}

    def merges(key: str) -> Recorder:
        return merged.setdefault(key, Recorder(key))

    gate = OtherHosts(b"secret", "agent0", "service", merges, print, knows=lambda key: key in ("a", "b"))
    served = ClusterServer(gate)
    try:
        for key in ("a", "b", "c"):
            body = msgspec.json.encode(Post(reports=[report("eve", key=key)]))
            assert send(served.port, body, secret="secret", key=key).status == (404 if key == "c" else 200)
        body = msgspec.json.encode(Post(reports=[report("eve", key="b")]))
        assert send(served.port, body, secret="secret", key="a", number=2).status == 400
    finally:
        served.close()
    assert {key: item.agents for key, item in merged.items()} == {"a": ["eve"], "b": ["eve"]}


def test_each_problem_is_reported_once_per_interval() -> None:
    now, notes = [0.0], list[str]()
    say = Notices(notes.append, lambda: now[0])
    for _ in range(3):
        say("refused", "eve")
    now[0] += 600.0
    say("refused", "eve")
    for number in range(1000):
        say(f"other {number}")
    assert notes[:3] == ["refused", "refused", "other 0"] and len(notes) < 300
