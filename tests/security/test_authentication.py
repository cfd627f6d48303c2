"""Attacks on /metrics and the relay when credentials are configured, and on the credentials themselves."""

from __future__ import annotations

import base64
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from prometheus_client import CollectorRegistry, Gauge
from rawhttp import Answer, request

from stallwatch.cli import cli
from stallwatch_alerts.relay.relay import Relay
from stallwatch_alerts.settings import RelaySettings
from stallwatch_alerts.store import IncidentStore
from stallwatch_dashboard.data.scraper import Scraper
from stallwatch_dashboard.data.store import MetricStore
from stallwatch_exporter.runs.runfolder import RunFolder
from stallwatch_exporter.serving.metrics import RunMetrics
from stallwatch_exporter.serving.server import serve
from stallwatch_exporter.settings import ExporterSettings, ServerSettings
from stallwatch_rules.pages.catalogue import Catalogue

TOKEN, USER, PASSWORD = "s3cret-Token.of/32+characters==", "prometheus", "pass:word ü"
Report = Callable[[str], None]
PATHS = {"metrics": "/metrics", "relay": "/api/messages?run=x"}


def basic(user: str, password: str) -> str:
    """The value of a header for basic authentication."""
    return f"Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}"


@pytest.fixture
def settings(tmp_path: Path) -> ServerSettings:
    """One token and two users, in files for their owner alone."""
    token, users = tmp_path / "token", tmp_path / "users"
    token.write_text(f"{TOKEN}\n")
    users.write_text(f"{USER}:{PASSWORD}\nalice:another\n", encoding="utf-8")
    for path in (token, users):
        path.chmod(0o600)
    return ServerSettings(token_file=token, basic_auth_file=users)


@pytest.fixture
def start(tmp_path: Path, catalogue: Catalogue) -> Iterator[Callable[..., int]]:
    """Starts /metrics or a relay with these settings; the port."""
    running: list[Any] = []

    def make(kind: str, settings: ServerSettings, report: Report = lambda _: None, **given: Any) -> int:
        if kind == "relay":
            store = IncidentStore.at_home(tmp_path)
            relay = Relay(RelaySettings(port=0, server=settings, **given), store, catalogue, report=report)
            running.extend((relay, store))
            return relay.server.port
        registry = CollectorRegistry()
        Gauge("answer", "One number.", registry=registry).set(42)
        server = serve(registry, ExporterSettings(port=0, server=settings), report)
        assert server is not None
        running.append(server)
        return int(server.url.rpartition(":")[2].partition("/")[0])

    yield make
    for item in running:
        item.close()


@pytest.fixture(params=PATHS)
def kind(request: pytest.FixtureRequest) -> str:
    """Each server."""
    return str(request.param)


@pytest.fixture
def ask(kind: str, start: Callable[..., int], settings: ServerSettings) -> Callable[..., Answer]:
    """Asks a server; the lines are further headers."""
    port = start(kind, settings)

    def ask_it(*headers: str, path: str = PATHS[kind], method: str = "GET") -> Answer:
        return request(port, path, "Host: 127.0.0.1", *headers, "Connection: close", method=method)

    return ask_it


def test_each_credential_grants_access(ask: Callable[..., Answer]) -> None:
    """What Prometheus sends with ``authorization`` and with ``basic_auth`` is let in."""
    for sent in (f"Bearer {TOKEN}", f"bearer {TOKEN}", basic(USER, PASSWORD), basic("alice", "another")):
        assert ask(f"Authorization: {sent}").status == 200


def test_unknown_user_is_refused_and_sees_only_a_contact(ask: Callable[..., Answer]) -> None:
    """A reader of /metrics or of the relay's messages without credentials."""
    answer = ask()
    assert answer.status == 401
    assert answer.headers["www-authenticate"].startswith('Bearer realm="stallwatch"')
    assert answer.body == "the bearer token or password is missing or wrong\n"


def test_wrong_token_is_refused(ask: Callable[..., Answer]) -> None:
    """A guess, a part of the token, or nothing."""
    for token in [
        "",
        " ",
        TOKEN[:-1],
        f"{TOKEN}x",
        f"{TOKEN} {TOKEN}",
        f"{TOKEN},",
        TOKEN.upper(),
        "null",
        f'"{TOKEN}"',
    ]:
        assert ask(f"Authorization: Bearer {token}").status == 401, token


def test_wrong_password_or_scheme_is_refused(ask: Callable[..., Answer]) -> None:
    """Passwords of others, credentials of the other kind, and what is no credential at all."""
    for sent in [
        basic(USER, "another"),  # of the other user
        basic(USER, ""),
        basic("", ""),
        basic("", PASSWORD),
        basic(USER, PASSWORD + "x"),
        basic("token", TOKEN),
        "Basic",
        "Basic !!!",
        f"Basic {base64.b64encode(USER.encode()).decode()}",  # no colon
        f"Basic {TOKEN}",
        f"Token {TOKEN}",
        TOKEN,
    ]:
        assert ask(f"Authorization: {sent}").status == 401, sent


def test_two_credentials_are_refused(ask: Callable[..., Answer]) -> None:
    """A right header hidden behind a wrong one, which two readers would judge differently."""
    for pair in (("Bearer wrong", f"Bearer {TOKEN}"), (f"Bearer {TOKEN}", "Bearer wrong")):
        assert ask(*(f"Authorization: {sent}" for sent in pair)).status == 401


def test_credentials_in_the_address_are_ignored(ask: Callable[..., Answer]) -> None:
    """A token in the address, which logs keep, and addresses that may be read as others."""
    for path in [f"/metrics?token={TOKEN}", "//metrics", "/%2e/metrics", "/./metrics"]:
        assert ask(path=path).status == 401, path


def test_other_http_methods_are_refused(ask: Callable[..., Answer]) -> None:
    """A method that is handled before anybody looks at the credentials."""
    for method in ["OPTIONS", "HEAD", "PUT", "DELETE", "TRACE", "get"]:
        assert ask(method=method).status in (401, 501), method


@pytest.mark.parametrize("path", ["/-/healthy/../api/messages", "/-/healthy/", "/-/healthy;/metrics"])
def test_open_health_check_gives_access_to_nothing_else(
    start: Callable[..., int], settings: ServerSettings, path: str
) -> None:
    """The one address of the relay that needs no credentials as the beginning of another."""
    port = start("relay", settings)
    assert request(port, "/-/healthy", "Host: 127.0.0.1", "Connection: close").body == "healthy\n"
    assert request(port, path, "Host: 127.0.0.1", "Connection: close").status == 401


def test_token_of_alertmanager_is_accepted_additionally(
    start: Callable[..., int], settings: ServerSettings
) -> None:
    """With ``[relay] token`` and files, each opens, and nothing else does."""
    port = start("relay", settings, token="of-alertmanager")
    for sent, status in (("of-alertmanager", 200), (TOKEN, 200), ("of-alertmanagers", 401)):
        headers = ("Host: 127.0.0.1", f"Authorization: Bearer {sent}", "Connection: close")
        assert request(port, "/metrics", *headers).status == status


@pytest.mark.parametrize("content", ["", "\n \n", None])
def test_file_without_credentials_grants_no_access(
    start: Callable[..., int], settings: ServerSettings, kind: str, content: str | None
) -> None:
    """An empty credential against a file that is empty, or was deleted."""
    said: list[str] = []
    for path in (settings.token_file, settings.basic_auth_file):
        assert path is not None
        path.unlink() if content is None else path.write_text(content)
    port = start(kind, settings, said.append)
    for sent in ("Bearer ", "Bearer", "Basic Og==", "Basic "):
        headers = ("Host: 127.0.0.1", f"Authorization: {sent}", "Connection: close")
        assert request(port, PATHS[kind], *headers).status == 401
    assert len(said) == 2 and all(str(settings.token_file.parent) in line for line in said)


def test_replaced_token_is_invalid_immediately(ask: Callable[..., Answer], settings: ServerSettings) -> None:
    """A leaked token that was replaced while the server was running."""
    assert settings.token_file is not None
    settings.token_file.write_text("fresh\n")
    assert ask(f"Authorization: Bearer {TOKEN}").status == 401
    assert ask("Authorization: Bearer fresh").status == 200


def test_credentials_file_readable_by_all_accounts_is_reported(
    start: Callable[..., int], settings: ServerSettings, kind: str
) -> None:
    """Another account of the host reads the token where it lies."""
    said: list[str] = []
    assert settings.token_file is not None
    settings.token_file.chmod(0o644)
    start(kind, settings, said.append)
    (line,) = said
    assert f"every account can read {settings.token_file}; run chmod o-r" in line


def test_logged_in_browser_cannot_be_used_by_another_site(ask: Callable[..., Answer]) -> None:
    """A browser adds a remembered password to requests of any page: their Origin gives them away."""
    known = f"Authorization: {basic(USER, PASSWORD)}"
    assert ask(known, "Origin: http://evil.example").status == 403
    assert ask(known, "Origin: http://127.0.0.1").status == 200


def test_authenticated_caller_can_use_any_name(start: Callable[..., int], settings: ServerSettings) -> None:
    """A foreign page has no credentials, so the names of users do not matter."""
    port = start("metrics", settings)
    known = f"Authorization: Bearer {TOKEN}"
    assert request(port, "/metrics", "Host: any.example", known).status == 200
    assert request(port, "/metrics", "Host: any.example").status == 401


@pytest.mark.parametrize(
    "text", ['[server]\ntoken_flie = "t"\n', "[server]\ntoken_file = 7\n", '[servre]\ntoken_file = "t"\n']
)
def test_invalid_access_list_does_not_grant_access(tmp_path: Path, text: str) -> None:
    """A misspelled key must not open to all what was meant for a few."""
    config = tmp_path / "stallwatch.toml"
    config.write_text(text)
    log = tmp_path / "train.log"
    log.write_text("step 1\n")
    done = CliRunner().invoke(cli, ["--config", str(config), "tail", "--port", "0", "--once", str(log)])
    assert f"/metrics is not served: {config}:" in done.output
    done = CliRunner().invoke(
        cli, ["--config", str(config), "relay"], env={"STALLWATCH_ALERTS_URLS": "json://x"}
    )
    assert done.exit_code == 2


def test_unauthenticated_caller_cannot_block_an_agent(settings: ServerSettings) -> None:
    """An agent that has ended waits for the next scrape, but only for one that it has answered before."""
    server = serve(CollectorRegistry(), ExporterSettings(port=0, server=settings), pytest.fail)
    assert server is not None
    port = int(server.url.rpartition(":")[2].partition("/")[0])
    for _ in range(3):
        scrape = ("Host: 127.0.0.1", "X-Prometheus-Scrape-Timeout-Seconds: 10")
        assert request(port, "/metrics", *scrape).status == 401
    assert server.linger(600.0) is False
    server.close()


class Thief:
    """A program of another account on the port of an agent; keeps the credentials that it is sent."""

    def __init__(self) -> None:
        self.sent: list[str | None] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.sent.append(self.headers["Authorization"])
                self.send_error(404)

            def log_message(self, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_port}/metrics"


def test_dashboard_does_not_send_credentials_to_a_taken_port(
    tmp_path: Path, settings: ServerSettings
) -> None:
    """Any account may listen on the port of an agent that was killed, and wait for the dashboard."""
    thief = Thief()
    metrics = RunMetrics("alive")
    metrics.registry.collect()
    server = serve(metrics.registry, ExporterSettings(port=0, server=settings), pytest.fail)
    assert server is not None
    store = MetricStore()
    scraper = Scraper(store, tmp_path, every=60.0, server=settings)
    try:
        for run, changes in (("dead", {"pid": 2**22 + 1}), ("elsewhere", {"namespace": "another/pid:[1]"})):
            RunFolder.create(run, ["x"], home=tmp_path).write_info(endpoint=thief.url, **changes)
            scraper.scrape_once()
        alive = RunFolder.create("alive", ["x"], home=tmp_path)
        alive.write_info(endpoint=server.url)
        scraper.scrape_once()
        assert thief.sent and set(thief.sent) == {None}
        assert [item.failures for item in scraper.status() if item.run == "alive"] == [0]
    finally:
        scraper.close()
        store.close()
        server.close()
        thief.server.shutdown()
        thief.server.server_close()
