"""Stallwatch's services of the compose file as processes: commands, environment and health checks.

Settings that Docker would provide are replaced here: folders, secrets, host names, and a free port.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from ports import free_port

pytestmark = [pytest.mark.server, pytest.mark.timeout(900)]

#: Port of a service in its container, and the variable, if any, that chooses another port.
PORTS = {
    "relay": ("19401", "STALLWATCH_RELAY_PORT"),
    "dashboard": ("8501", "STALLWATCH_DASHBOARD_PORT"),
    "demo": ("19400", "STALLWATCH_EXPORTER_PORT"),
    "demo-chat": ("8080", None),
}
_PATIENCE = 600.0  #: seconds for all services together on a busy machine
_CHECK = 60.0  #: seconds for one health check
_END = 30.0  #: seconds for all services to end after a signal; Docker also waits before it kills

#: The demo ends with its recording, after five minutes. At this speed it outlasts the start of the other
#: services.
_SLOWLY = {"demo": ["--speed", "0.05"]}


class Service:
    """A service's process, started as its container would start it."""

    def __init__(self, root: Path, folder: Path, name: str, found: dict[str, Any]) -> None:
        self.inside, variable = PORTS[name]
        self.port = str(free_port())
        self._root, self._folder = root, folder
        image = _image((root / found["build"]["dockerfile"]).read_text())
        words = [
            *found.get("entrypoint", image["ENTRYPOINT"]),
            *found.get("command", image["CMD"]),
            *_SLOWLY.get(name, []),
        ]
        given = {key: self._here(str(value)) for key, value in found.get("environment", {}).items()}
        if variable:
            given[variable] = self.port
        self.said = folder / f"{name}.log"
        with self.said.open("wb") as out:
            self.process = subprocess.Popen(
                [self._word(word) for word in words],
                env={**os.environ, **given, "STALLWATCH_CACHE": os.environ["STALLWATCH_CACHE"]},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # allows killing the service with its child processes
            )
        self._started: list[psutil.Process] = []
        self._check = [self._word(word) for word in found["healthcheck"]["test"][1:]]

    def healthy(self) -> bool:
        """Return True if the service's own health check passes now."""
        assert self.process.poll() is None, self.said.read_text()
        try:
            answer = subprocess.run(self._check, capture_output=True, check=False, timeout=_CHECK)
        except subprocess.TimeoutExpired:
            return False
        return answer.returncode == 0

    def ask_to_end(self) -> None:
        """Send Docker's signal; record the child processes, none of which may survive the test."""
        with contextlib.suppress(psutil.NoSuchProcess):
            self._started = psutil.Process(self.process.pid).children(recursive=True)
        self.process.terminate()

    def close(self, deadline: float) -> None:
        """Wait for the service's end until `deadline`, then kill it with all its child processes."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(max(0.0, deadline - time.monotonic()))
        with contextlib.suppress(ProcessLookupError):  # no process of its group is left
            os.killpg(self.process.pid, signal.SIGKILL)
        for item in self._started:
            with contextlib.suppress(psutil.NoSuchProcess):
                item.kill()
        self.process.wait()

    def _word(self, word: str) -> str:
        if word == "python":
            return sys.executable
        if word == "stallwatch":
            return str(Path(sys.executable).with_name("stallwatch"))
        return self._here(re.sub(rf"\b{self.inside}\b", self.port, word))

    def _here(self, text: str) -> str:
        """Return a container's path or address for this machine, with addresses on the loopback interface."""
        text = re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", text)
        text = text.replace("/run/secrets/", f"{self._folder}/").replace("0.0.0.0", "127.0.0.1")
        text = re.sub("^/state", f"{self._folder}/state", text).replace("/src/", f"{self._root}/")
        return text.replace("http://prometheus:9090", "http://127.0.0.1:9")


def _image(dockerfile: str) -> dict[str, list[str]]:
    found = dict(re.findall(r"^(ENTRYPOINT|CMD) (\[.*\])$", dockerfile, flags=re.MULTILINE))
    return {word: json.loads(found.get(word, "[]")) for word in ("ENTRYPOINT", "CMD")}


@pytest.fixture
def services(root: Path, tmp_path: Path) -> Iterator[dict[str, Service]]:
    """Start every service that the compose file builds, on one state folder, and yield them."""
    pytest.importorskip("streamlit", reason="the dashboard's extra is not installed")
    output = yaml.safe_load((root / "docker-compose.yml").read_text())["services"]
    (tmp_path / "alerts_urls").write_text("json://127.0.0.1:9/\n")
    (tmp_path / "deadman_url").write_text("")
    made: dict[str, Service] = {}
    try:
        for name, item in output.items():
            if "build" in item:
                made[name] = Service(root, tmp_path, name, item)
        yield made
    finally:
        for service in made.values():
            service.ask_to_end()
        deadline = time.monotonic() + _END
        for service in made.values():
            service.close(deadline)


def test_each_service_passes_its_health_check(services: dict[str, Service]) -> None:
    assert set(services) == set(PORTS)
    waiting = dict(services)
    deadline = time.monotonic() + _PATIENCE
    while waiting and time.monotonic() < deadline:
        waiting = {name: service for name, service in waiting.items() if not service.healthy()}
        # each check is a process that takes processor time from the services
        time.sleep(0.5 if waiting else 0)
    assert not waiting, {name: service.said.read_text() for name, service in waiting.items()}
