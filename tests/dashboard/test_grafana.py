"""Grafana dashboards: queries that Prometheus accepts, current files, a push that can be repeated."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("grafana_foundation_sdk")
pytest.importorskip("grafana_client")
from stallwatch_dashboard.grafana.boards import RUN, RUNS, TAG, boards
from stallwatch_dashboard.grafana.push import FOLDER, SOURCE, Grafana, PushError, push
from stallwatch_exporter.incident import Incident

TOKEN = "glsa_n0tArealT0ken"
ALL = [
    (uid, target["expr"])
    for uid, board in boards().items()
    for panel in board["panels"]
    for target in panel.get("targets", [])
]


class FakeGrafana:
    """Simulated Grafana 11.4 with the used calls, by its API description."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str, Any]] = []
        self.things: dict[str, Any] = {}
        self.annotations: list[dict[str, Any]] = []
        self.kind = "application/json"
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def _serve(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                body = json.loads(self.rfile.read(length)) if length else None
                path = self.path.partition("?")
                outer.calls.append((self.command, path[0], body))
                if self.headers["Authorization"] != f"Bearer {TOKEN}":
                    status, answer = 401, {"message": "Invalid API key"}
                else:
                    status, answer = outer.answer(self.command, path[0], urllib.parse.parse_qs(path[2]), body)
                content = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Type", outer.kind)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            do_GET = do_POST = do_PUT = _serve

            def log_message(self, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def answer(self, method: str, path: str, asked: dict[str, list[str]], body: Any) -> tuple[int, Any]:
        if path == "/api/annotations" and method == "GET":
            return 200, [
                annotation for annotation in self.annotations if set(asked["tags"]) <= set(annotation["tags"])
            ]
        if path == "/api/annotations":
            self.annotations.append({**body, "id": len(self.annotations) + 1})
            return 200, {"id": len(self.annotations), "message": "Annotation added"}
        if path.startswith("/api/annotations/"):
            self.annotations[int(path.rpartition("/")[2]) - 1].update(body)
            return 200, {"message": "Annotation updated"}
        if method == "GET":
            found = self.things.get(path)
            return (200, found) if found else (404, {"message": "not found"})
        if path == "/api/folders":
            self.things[f"/api/folders/{body['uid']}"] = body
        elif path == "/api/dashboards/db":
            board = {**body["dashboard"], "id": 7, "version": 3}
            self.things[f"/api/dashboards/uid/{board['uid']}"] = {"dashboard": board, "meta": {}}
        elif path.startswith("/api/datasources"):
            self.things[f"/api/datasources/uid/{body['uid']}"] = body
        else:
            return 404, {"message": "not found"}
        return 200, {"status": "success"}


@pytest.fixture
def grafana() -> Iterator[FakeGrafana]:
    made = FakeGrafana()
    yield made
    made.server.shutdown()
    made.server.server_close()


def test_push_creates_everything_and_a_second_push_nothing(
    grafana: FakeGrafana, make_incident: Callable[..., Incident]
) -> None:
    found, incident = boards(), make_incident()
    first = list(push(Grafana(grafana.url, TOKEN), found, "http://prometheus:9090", [incident]))
    assert [done.how for done in first] == ["created"] * 5
    assert [call["folderUid"] for _, path, call in grafana.calls if path == "/api/dashboards/db"] == [
        FOLDER
    ] * 2
    assert grafana.things[f"/api/datasources/uid/{SOURCE}"]["url"] == "http://prometheus:9090"
    again = list(push(Grafana(grafana.url, TOKEN), found, "http://prometheus:9090", [incident]))
    assert [done.how for done in again] == ["kept"] * 5


def test_push_updates_changed_items(grafana: FakeGrafana, make_incident: Callable[..., Incident]) -> None:
    opened = make_incident(opened_at=100.0, updated_at=100.0)
    list(push(Grafana(grafana.url, TOKEN), boards(), "http://a:9090", [opened]))
    ended = make_incident(opened_at=100.0, updated_at=160.0, status="resolved", resolved_at=160.0)
    changed = {RUN: {**boards()[RUN], "title": "Mine"}}
    done = list(push(Grafana(grafana.url, TOKEN), changed, "http://b:9090", [ended]))
    assert [item.how for item in done] == ["kept", "updated", "updated", "updated"]
    (mark,) = grafana.annotations
    assert (mark["time"], mark["timeEnd"]) == (100_000, 160_000) and TAG in mark["tags"]


def test_wrong_token_is_reported_without_the_token(grafana: FakeGrafana) -> None:
    with pytest.raises(PushError, match="STALLWATCH_GRAFANA_TOKEN") as caught:
        list(push(Grafana(grafana.url, "glsa_wr0ngT0ken"), boards()))
    assert "glsa" not in str(caught.value)


def test_unreachable_grafana_is_reported() -> None:
    with pytest.raises(PushError, match="does not respond"):
        list(push(Grafana("http://127.0.0.1:9", TOKEN), boards()))


def test_server_without_grafanas_paths_is_reported(grafana: FakeGrafana) -> None:
    with pytest.raises(PushError, match="404"):
        list(push(Grafana(f"{grafana.url}/elsewhere", TOKEN), boards()))


def test_address_without_a_scheme_is_reported() -> None:
    with pytest.raises(PushError, match="must begin with http"):
        list(push(Grafana("localhost:3000", TOKEN), boards()))


def test_response_of_another_server_is_reported(grafana: FakeGrafana) -> None:
    """Another page is the sign-in page of a proxy, for example, or another server at that port."""
    grafana.things[f"/api/folders/{FOLDER}"] = "<html>"
    grafana.kind = "text/html"
    with pytest.raises(PushError, match="not Grafana"):
        list(push(Grafana(grafana.url, TOKEN), boards()))


def test_every_call_is_in_grafanas_description(
    grafana: FakeGrafana, make_incident: Callable[..., Incident], root: Path
) -> None:
    description = root.parent / "shared" / "grafana-swagger.json"
    if not description.exists():
        pytest.skip("Grafana's API description is not at hand")
    schema = json.loads(description.read_text())
    client = Grafana(grafana.url, TOKEN)
    list(push(client, boards(), "http://a:9090", [make_incident(updated_at=2e9)]))
    list(
        push(client, {RUN: {**boards()[RUN], "title": "x"}}, "http://b:9090", [make_incident(updated_at=3e9)])
    )
    patterns = {re.compile(re.sub(r"\{[^}]+\}", "[^/]+", path)): path for path in schema["paths"]}
    checked = 0
    for method, path, body in grafana.calls:
        known = next(known for pattern, known in patterns.items() if pattern.fullmatch(path[len("/api") :]))
        found = schema["paths"][known][method.lower()]
        wanted = next((item for item in found.get("parameters", ()) if item["in"] == "body"), None)
        if body is not None:
            assert wanted is not None
            definition = schema["definitions"][wanted["schema"]["$ref"].rpartition("/")[2]]
            assert set(body) <= set(definition["properties"]), (path, set(body))
            assert set(definition.get("required", ())) <= set(body)
            checked += 1
    assert checked >= 8


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Yield an empty Prometheus."""
    program = shutil.which("prometheus")
    if program is None:
        pytest.skip("not installed: prometheus")
    folder = tmp_path_factory.mktemp("prometheus")
    (folder / "prometheus.yml").write_text("global: {}\n")
    with socket.create_server(("127.0.0.1", 0)) as probe:
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    options = [f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data"]
    server = subprocess.Popen(
        [program, *options, f"--web.listen-address={address}"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        for _ in range(2400):
            try:
                urllib.request.urlopen(f"http://{address}/-/ready", timeout=120)
                break
            except OSError:
                time.sleep(0.05)
        yield f"http://{address}"
    finally:
        server.terminate()
        server.wait(20)


@pytest.mark.server
@pytest.mark.parametrize(("uid", "query"), ALL)
def test_prometheus_accepts_every_query(prometheus: str, uid: str, query: str) -> None:
    plain = query.replace("$run", "a-run").replace("$__range", "1h")
    address = f"{prometheus}/api/v1/query?" + urllib.parse.urlencode({"query": plain})
    try:
        answer = json.load(urllib.request.urlopen(address, timeout=120))
    except urllib.error.HTTPError as error:
        pytest.fail(f"{uid}: {query}: {error.read().decode()}")
    assert answer["status"] == "success"


def test_queries_use_only_published_metrics(root: Path) -> None:
    published = set(re.findall(r"`(stallwatch_\w+)", (root / "docs/metrics.md").read_text()))
    recorded = set(re.findall(r"record: (\S+)", (root / "rules/prometheus/recording.yml").read_text()))
    for uid, query in ALL:
        for name in re.findall(r"(?:run:)?stallwatch_\w+(?::\w+)?", query):
            if name == "stallwatch_phase" or name in recorded:
                continue
            assert re.sub(r"_(bucket|sum|count)$", "", name) in published, f"{uid}: {name}"


def test_boards_of_the_compose_stack_are_current(root: Path) -> None:
    folder = root / "docs/compose/grafana/boards"
    stored = {path.stem: json.loads(path.read_text()) for path in folder.glob("*.json")}
    assert stored == boards(), "stallwatch grafana boards docs/compose/grafana/boards"


def test_links_between_boards_are_valid() -> None:
    text = json.dumps(boards())
    assert set(re.findall(r"/d/([\w-]+)", text)) <= {RUNS, RUN}
    for board in boards().values():
        ids = [panel["id"] for panel in board["panels"]]
        assert len(ids) == len(set(ids))
