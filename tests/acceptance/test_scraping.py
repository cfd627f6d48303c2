"""Prometheus finds every agent of a host and scrapes it with credentials, as docs/metrics.md shows."""

from __future__ import annotations

import json
import re
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

pytestmark = [pytest.mark.server, pytest.mark.timeout(600)]

TOKEN, PASSWORD = "0123456789abcdef" * 4, "of prometheus: ü"
_WAIT = 120.0


def until(ask: Callable[[], Any], wanted: Any) -> None:
    """Wait until a function returns the wanted value; fail with the last value otherwise."""
    deadline = time.monotonic() + _WAIT
    while (found := ask()) != wanted:
        assert time.monotonic() < deadline, found
        time.sleep(0.1)


def jobs(root: Path, places: dict[str, str]) -> list[dict[str, Any]]:
    """Return the scrape configurations of the documentation: with a token, a password, and neither."""
    text = (root / "docs/metrics.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```yaml\n(.*?)```", text, re.S)
    for shown, here in places.items():
        assert any(shown in block for block in blocks), shown
        blocks = [block.replace(shown, here) for block in blocks]
    found, password = (yaml.safe_load(textwrap.dedent(block)) for block in blocks)
    (by_token,) = found["scrape_configs"]
    stranger = {name: value for name, value in by_token.items() if name != "authorization"}
    return [
        by_token,
        {**stranger, **password, "job_name": "by-password"},
        {**stranger, "job_name": "stranger"},
    ]


@pytest.fixture
def configured(stack: Any, root: Path) -> Any:
    """Yield agents, the relay and Prometheus, configured with one token and one user."""
    folder = stack.folder
    # Prometheus checks a missing folder only every five minutes, so create it first
    (folder / "targets").mkdir()
    for name, text in (("token", TOKEN), ("users", f"prometheus:{PASSWORD}"), ("password", PASSWORD)):
        (folder / name).write_text(f"{text}\n" if name != "password" else text, encoding="utf-8")
        (folder / name).chmod(0o600)
    places = {
        "/var/lib/stallwatch/targets": str(folder / "targets"),
        "/etc/prometheus/stallwatch-token": str(folder / "token"),
        "/etc/prometheus/stallwatch-password": str(folder / "password"),
    }
    relay = {
        "job_name": "relay",
        "static_configs": [{"targets": [f"127.0.0.1:{stack.ports['relay']}"]}],
        "authorization": {"credentials_file": str(folder / "token")},
    }
    config = {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s"},
        "scrape_configs": [*jobs(root, places), relay],
    }
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    files = {"TOKEN_FILE": str(folder / "token"), "BASIC_AUTH_FILE": str(folder / "users")}
    stack.around |= {f"STALLWATCH_SERVER_{name}": path for name, path in files.items()}
    return stack


def test_every_agent_of_a_host_is_discovered_and_scraped_with_credentials(configured: Any) -> None:
    stack = configured
    discovered = ("--port", "0", "--sd-dir", str(stack.folder / "targets"))

    def series(expression: str, *labels: str) -> list[tuple[str, ...]]:
        found = json.loads(stack.get("prometheus", f"/api/v1/query?query={expression}"))["data"]["result"]
        return sorted(tuple(item["metric"].get(label, "") for label in labels) for item in found)

    def announced() -> list[str]:
        files = (stack.folder / "targets").glob("*.json")
        return sorted(json.loads(path.read_text())[0]["labels"]["__meta_stallwatch_run"] for path in files)

    stack.start("prometheus", "relay")
    _, second = (stack.train(name, *discovered) for name in ("one", "two"))
    until(
        lambda: series("stallwatch_step", "job", "run", "exported_run"),
        [(job, run, "") for job in ("by-password", "stallwatch") for run in ("one", "two")],
    )
    assert len(set(series("stallwatch_step", "instance"))) == 2
    until(lambda: series("up==1", "job"), [("by-password",)] * 2 + [("relay",)] + [("stallwatch",)] * 2)
    until(lambda: series("up==0", "job"), [("stranger",)] * 2)
    targets = json.loads(stack.get("prometheus", "/api/v1/targets"))["data"]["activeTargets"]
    refused = [target["lastError"] for target in targets if target["labels"]["job"] == "stranger"]
    assert refused == ["server returned HTTP status 401 Unauthorized"] * 2

    stack.stop("one")  # an agent removes its announcement when it ends
    assert announced() == ["two"]
    until(lambda: series("up==1", "job"), [("by-password",), ("relay",), ("stallwatch",)])
    second.kill_agent()  # the next agent removes the announcement of a killed agent
    assert announced() == ["two"]
    stack.train("three", *discovered)
    until(announced, ["three"])
    until(lambda: series("stallwatch_step{job='stallwatch'}", "run"), [("three",)])
