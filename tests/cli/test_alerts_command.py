from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

Stallwatch = Callable[..., Result]


@pytest.fixture
def received() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    bodies: list[dict[str, Any]] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *args: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    yield f"json://127.0.0.1:{server.server_port}/s3cr3t-hook", bodies
    server.shutdown()
    server.server_close()


def test_alerts_test_reports_a_working_chat(
    stallwatch: Stallwatch, received: tuple[str, list[dict[str, Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, bodies = received
    monkeypatch.setenv("STALLWATCH_ALERTS_URLS", url)
    result = stallwatch("alerts", "test", "--language", "zh")
    assert (result.exit_code, "s3cr3t" in result.output) == (0, False)
    assert result.stdout.startswith("ok      json://127.0.0.1:")
    assert "测试消息" in bodies[0]["title"]


def test_all_mistakes_are_reported_at_once(stallwatch: Stallwatch, tmp_path: Path) -> None:
    (tmp_path / "stallwatch.toml").write_text("[alerts]\nlanguage = 'de'\nurls = ['slak://s3cr3t/b/c']\n")
    result = stallwatch("alerts", "test")
    assert (result.exit_code, "s3cr3t" in result.output) == (2, False)
    assert "alerts.language must be" in result.stderr and "did you mean 'slack'?" in result.stderr


def test_alerts_test_reports_failing_chats_without_secrets(
    stallwatch: Stallwatch, received: tuple[str, list[dict[str, Any]]], tmp_path: Path
) -> None:
    url, bodies = received
    (tmp_path / "stallwatch.toml").write_text(
        f"[alerts]\nurls = ['json://127.0.0.1:1/s3cr3t-a', '{url}', 'x://s3cr3t']\n"
    )
    result = stallwatch("alerts", "test")
    assert (result.exit_code, "s3cr3t" in result.output) == (1, False)
    assert [line.split()[0] for line in result.stdout.splitlines()] == [
        *("failed", "→", "→", "ok"),
        *("failed", "→", "→"),
    ]
    assert f"→ {tmp_path / 'stallwatch.toml'}:2 (alerts.urls)" in result.stdout
    assert "HTTPS_PROXY" in result.stdout or "firewalls" in result.stdout
    assert "2 of 3 chats" in result.stderr
    assert len(bodies) == 1


def test_missing_chat_is_reported_with_the_settings_that_add_one(stallwatch: Stallwatch) -> None:
    result = stallwatch("alerts", "test")
    assert result.exit_code == 2
    assert "STALLWATCH_ALERTS_URLS" in result.stderr and "stallwatch.toml" in result.stderr


@pytest.mark.parametrize(
    ("mistake", "goes_on"),
    [
        ("[stall]\nfactor = 'three'\n", True),
        ("[rule]\n", True),
        ("[alert]\nurls = []\n", False),
        ("[run]\nhome = 3\n", False),
        ("[wholly-else]\n", False),
    ],
)
def test_mistake_in_another_key_is_reported_and_does_not_prevent_the_message(
    stallwatch: Stallwatch,
    received: tuple[str, list[dict[str, Any]]],
    tmp_path: Path,
    mistake: str,
    goes_on: bool,
) -> None:
    url, bodies = received
    (tmp_path / "stallwatch.toml").write_text(f"[alerts]\nurls = ['{url}']\n{mistake}")
    result = stallwatch("alerts", "test")
    assert "stallwatch.toml:3" in result.stderr or "stallwatch.toml:4" in result.stderr
    assert (len(bodies), result.exit_code) == ((1, 1) if goes_on else (0, 2))
    assert stallwatch("alerts", "list").exit_code == (0 if goes_on else 2)
