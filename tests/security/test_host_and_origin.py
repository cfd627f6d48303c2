"""Attacks through a browser: pages of another site reach our servers, by a name of their own or directly.

The servers are real. Each attack is tried on every server that it concerns. What must be answered is tried,
too: a server that refuses everything does not pass.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator

import pytest
from dashboards import served
from prometheus_client import CollectorRegistry, Gauge
from rawhttp import request, websocket

from stallwatch_alerts.relay.relay import Relay
from stallwatch_alerts.settings import RelaySettings
from stallwatch_alerts.store import IncidentStore
from stallwatch_dashboard.settings import DashboardSettings
from stallwatch_exporter.serving.hosts import own_names
from stallwatch_exporter.serving.server import serve
from stallwatch_exporter.settings import ExporterSettings, ServerSettings
from stallwatch_rules.pages.catalogue import Catalogue

SERVERS = ("metrics", "relay", "dashboard")
PATHS = {"metrics": "/metrics", "relay": "/api/messages?run=x", "dashboard": "/_stcore/health"}
ALLOWED = ServerSettings(allowed_hosts=("*.example.org", "Watch.Example.com"))
REMEDY = "allowed_hosts under [server]"


@pytest.fixture(scope="module")
def said() -> list[str]:
    """What the agent and the relay reported."""
    return []


@pytest.fixture(scope="module")
def metrics(said: list[str]) -> Iterator[int]:
    """The port of a /metrics."""
    registry = CollectorRegistry()
    Gauge("answer", "One number.", registry=registry).set(42)
    server = serve(registry, ExporterSettings(port=0, server=ALLOWED), said.append)
    assert server is not None
    yield int(server.url.rpartition(":")[2].partition("/")[0])
    server.close()


@pytest.fixture(scope="module")
def relay(tmp_path_factory: pytest.TempPathFactory, catalogue: Catalogue, said: list[str]) -> Iterator[int]:
    """The port of a relay."""
    store = IncidentStore.at_home(tmp_path_factory.mktemp("relay"))
    running = Relay(RelaySettings(port=0, server=ALLOWED), store, catalogue, report=said.append)
    yield running.server.port
    running.close()
    store.close()


@pytest.fixture(scope="module")
def dashboard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """The port of a dashboard, as the command line starts it."""
    home = tmp_path_factory.mktemp("pages")
    with served(DashboardSettings(home=home, url="https://pages.example.net", server=ALLOWED)) as (port, _):
        yield port


@pytest.fixture(params=SERVERS)
def server(request: pytest.FixtureRequest) -> tuple[int, str]:
    """The port of each server, and a path that it answers."""
    return request.getfixturevalue(request.param), PATHS[request.param]


def refused(server: tuple[int, str], *headers: str, version: str = "HTTP/1.1") -> bool:
    """Whether the request is refused for its name, with the setting that would allow it."""
    answer = request(*server, *headers, version=version)
    return answer.status == 421 and REMEDY in answer.body


# ---- names


@pytest.mark.parametrize(
    "host",
    [
        *("127.0.0.1", "127.0.0.1:{port}", "[::1]:{port}", "10.1.2.3:80", "[fd00::7]"),
        *("localhost:{port}", "LOCALHOST", "localhost.", "runs.localhost:{port}"),
        *("node7.example.org:{port}", "a.b.example.org", "watch.example.com", "WATCH.example.com."),
        *("host.docker.internal:{port}", socket.gethostname()),
    ],
)
def test_addresses_and_local_names_are_answered(server: tuple[int, str], host: str) -> None:
    """Prometheus scrapes by address, people come by a tunnel to localhost, and configured names count."""
    assert request(*server, f"Host: {host.format(port=server[0])}", "Connection: close").status == 200


def test_rebound_name_of_this_machine_is_refused(server: tuple[int, str]) -> None:
    """DNS rebinding: evil.example resolves to 127.0.0.1 once its page is loaded."""
    assert refused(server, "Host: evil.example", "Connection: close")


def test_public_name_that_resolves_to_any_address_is_refused(server: tuple[int, str]) -> None:
    """Rebinding without a name server of one's own: nip.io answers with the address in the name."""
    assert refused(server, "Host: 127.0.0.1.nip.io", "Connection: close")


@pytest.mark.parametrize("host", ["localhost.evil.example", "evillocalhost", "example.org.evil.example"])
def test_name_similar_to_an_allowed_name_is_refused(server: tuple[int, str], host: str) -> None:
    """An allowed name as the beginning or the end of another one."""
    assert refused(server, f"Host: {host}", "Connection: close")


@pytest.mark.parametrize("host", ["example.org", "evilexample.org", ".example.org", "*.example.org"])
def test_wildcard_matches_only_names_below_its_domain(server: tuple[int, str], host: str) -> None:
    """A neighbour of the domain that ``*.example.org`` allows."""
    assert refused(server, f"Host: {host}", "Connection: close")


@pytest.mark.parametrize("host", ["127.0.0.1@evil.example", "evil.example@127.0.0.1", "a:b@localhost"])
def test_user_in_the_host_header_is_refused(server: tuple[int, str], host: str) -> None:
    """What one reader takes for the name is the user for another."""
    assert refused(server, f"Host: {host}", "Connection: close")


@pytest.mark.parametrize("host", ["ｌocalhost", "locaℓhost", "localhoſt", "xn--localhost-evil"])
def test_allowed_name_in_other_letters_is_refused(server: tuple[int, str], host: str) -> None:
    """Letters that become those of localhost when a reader folds them."""
    answer = request(*server, f"Host: {host}", "Connection: close")
    assert answer.status in (400, 421)


@pytest.mark.parametrize("host", ["2130706433", "0x7f000001", "127.1", "0177.0.0.1", "::1", "[127.0.0.1]"])
def test_address_in_another_notation_is_refused(server: tuple[int, str], host: str) -> None:
    """Spellings that resolvers take for 127.0.0.1 and browsers never send."""
    assert refused(server, f"Host: {host}", "Connection: close")


def test_two_host_headers_are_refused(server: tuple[int, str]) -> None:
    """A good name for who looks at one header, a foreign one for who looks at the other."""
    for hosts in (("localhost", "evil.example"), ("evil.example", "localhost"), ("localhost", "localhost")):
        answer = request(*server, *(f"Host: {host}" for host in hosts), "Connection: close")
        assert answer.status in (400, 421)


@pytest.mark.parametrize("headers", [(), ("Host:",), ("Host: /",), ("Host: :80",), ("Host: localhost:port",)])
def test_request_without_a_usable_name_is_refused(server: tuple[int, str], headers: tuple[str, ...]) -> None:
    """No name at all, or one that is none, in place of a foreign one."""
    answer = request(*server, *headers, "Connection: close", version="HTTP/1.0")
    assert answer.status in (400, 421)


def test_proxy_headers_do_not_change_the_name(server: tuple[int, str]) -> None:
    """A page can set none of these, but a proxy in between may pass on what it was sent."""
    lent = ("X-Forwarded-Host: localhost", "X-Forwarded-Server: localhost", "Forwarded: host=localhost")
    assert refused(server, "Host: evil.example", *lent, "Connection: close")


# ---- pages of other sites


def test_page_of_another_site_cannot_use_a_server(server: tuple[int, str]) -> None:
    """A request that a page of evil.example sends to http://127.0.0.1 itself, without rebinding."""
    for origin in ("http://evil.example", "null", f"http://127.0.0.1.nip.io:{server[0]}", "http://[::1"):
        answer = request(*server, f"Host: 127.0.0.1:{server[0]}", f"Origin: {origin}", "Connection: close")
        assert answer.status == 403
    own = f"127.0.0.1:{server[0]}"
    assert request(*server, f"Host: {own}", f"Origin: http://{own}", "Connection: close").status == 200


def test_page_of_another_local_account_cannot_use_a_server(server: tuple[int, str]) -> None:
    """On a shared host anybody may serve pages, on another port of the same address."""
    answer = request(
        *server, f"Host: 127.0.0.1:{server[0]}", "Origin: http://127.0.0.1:9999", "Connection: close"
    )
    assert answer.status == 403


def test_page_cannot_write_to_the_chats(relay: int) -> None:
    """A form of another site posts an alert to the relay of its visitor: no preflight asks first."""
    alert = {"status": "firing", "labels": {"alertname": "Evil"}, "startsAt": "2026-11-26T10:00:00Z"}
    body = json.dumps({"version": "4", "groupKey": "{}", "status": "firing", "alerts": [alert]}).encode()
    headers = (f"Host: 127.0.0.1:{relay}", "Content-Type: text/plain")
    answer = request(
        relay, "/alertmanager", *headers, "Origin: http://evil.example", method="POST", body=body
    )
    assert answer.status == 403
    shown = request(relay, "/metrics", f"Host: 127.0.0.1:{relay}", "Connection: close").body
    assert 'stallwatch_relay_notifications_total{outcome="stored"} 0.0' in shown


@pytest.mark.parametrize("path", ["/", "/_stcore/host-config", "/_stcore/metrics", "/media/x", "/static/x"])
def test_all_paths_of_the_pages_are_protected(dashboard: int, path: str) -> None:
    """A rebound name at the paths that Streamlit serves by itself."""
    assert refused((dashboard, path), "Host: evil.example", "Accept: text/html", "Connection: close")


def test_upload_from_another_site_is_refused(dashboard: int) -> None:
    """A page sends a file into the post-mortem of its visitor."""
    path = "/_stcore/upload_file/session/file"
    for host, origin, status in (
        ("evil.example", "http://evil.example", 421),
        (f"127.0.0.1:{dashboard}", "http://evil.example", 403),
    ):
        headers = (f"Host: {host}", f"Origin: {origin}", "Content-Type: application/octet-stream")
        answer = request(dashboard, path, *headers, "Connection: close", method="PUT", body=b"x")
        assert answer.status == status and REMEDY in answer.body


# ---- websockets, to which the same-origin rule of browsers does not apply


@pytest.mark.parametrize(
    ("host", "origin"),
    [
        ("127.0.0.1:{port}", "http://127.0.0.1:{port}"),
        ("localhost:{port}", "http://localhost:{port}"),
        ("[::1]:{port}", "http://[::1]:{port}"),
        ("pages.example.net", "https://pages.example.net"),
        ("node7.example.org", "http://node7.example.org"),
    ],
)
def test_websocket_of_the_dashboards_pages_is_opened(dashboard: int, host: str, origin: str) -> None:
    """The pages work by address, by a tunnel, and behind a proxy whose address is configured."""
    headers = [f"Host: {host}".format(port=dashboard), f"Origin: {origin}".format(port=dashboard)]
    assert websocket(dashboard, *headers).status == 101


@pytest.mark.parametrize(
    ("host", "origin"),
    [
        ("pages.example.net:443", "https://pages.example.net"),
        ("127.0.0.1:{port}", "https://pages.example.net"),  # a proxy that passes on no Host
    ],
)
def test_proxy_that_rewrites_the_host_can_open_the_websocket(dashboard: int, host: str, origin: str) -> None:
    """Pages of the configured address are no other site's, though their Host is written in another way."""
    answer = websocket(dashboard, f"Host: {host}".format(port=dashboard), f"Origin: {origin}")
    assert answer.status == 101


def test_websocket_under_a_rebound_name_is_refused(dashboard: int) -> None:
    """Host and Origin are both the attacker's, and the same: Streamlit alone would answer 101."""
    answer = websocket(dashboard, "Host: evil.example", "Origin: http://evil.example")
    assert answer.status == 421 and REMEDY in answer.body


@pytest.mark.parametrize(
    "origin",
    [
        "http://evil.example",
        "null",
        "http://127.0.0.1:9999",
        "http://localhost",
        "file://",
        "http://x@127.0.0.1",
    ],
)
def test_websocket_of_another_sites_page_is_refused(dashboard: int, origin: str) -> None:
    """Cross-site websocket hijacking: the page connects to 127.0.0.1 itself."""
    answer = websocket(dashboard, f"Host: 127.0.0.1:{dashboard}", f"Origin: {origin}")
    assert answer.status == 403 and REMEDY in answer.body


@pytest.mark.parametrize(("kind", "where"), [("metrics", "/metrics: "), ("relay", "")])
def test_refused_name_is_reported_once(
    request: pytest.FixtureRequest, said: list[str], kind: str, where: str
) -> None:
    """A scraper whose name is refused must not fail in silence, nor a page fill the terminal."""
    port = request.getfixturevalue(kind)
    for name in ("evil.example", "AKIAIOSFODNN7EXAMPLE.evil.example", "evil.example"):
        assert refused((port, PATHS[kind]), f"Host: {name}", "Connection: close")
    mine = [line for line in said if line.startswith("/metrics: ") == bool(where)]
    assert len(mine) == 1 and mine[0].startswith(f"{where}refused a request: ") and REMEDY in mine[0]


@pytest.mark.parametrize("path", ["/", "/_stcore/health", "/run", "/job/x", "/nothing.js"])
@pytest.mark.parametrize("host", ["localhost", "evil.example"])
def test_pages_cannot_be_framed_or_sniffed(dashboard: int, path: str, host: str) -> None:
    """Clickjacking: a page of another site lays ours under the cursor of its visitor."""
    answer = request(dashboard, path, f"Host: {host}", "Accept: text/html", "Connection: close")
    assert answer.headers["content-security-policy"] == "frame-ancestors 'self'"
    assert answer.headers["x-frame-options"] == "SAMEORIGIN"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "same-origin"


def test_refusal_does_not_repeat_markup(server: tuple[int, str]) -> None:
    """A refusal that shows what was sent must not run it."""
    answer = request(*server, "Host: <script>alert(1)</script>", "Connection: close")
    assert answer.status in (400, 421) and "<script" not in answer.body
    assert answer.headers["content-type"].startswith("text/plain")


def test_names_of_this_machine_cannot_be_claimed_by_others() -> None:
    """A name server's answer for our own address must not open the door to a wildcard."""
    assert not [name for name in own_names() if "*" in name or not name]
