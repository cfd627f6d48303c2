"""Real servers on free ports, with the configuration that users get: only addresses differ."""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import subprocess
import sys
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import psutil
import yaml
from ports import free_port

PROMETHEUS, PROMTOOL = "prometheus", "promtool"
ALERTMANAGER, AMTOOL = "prometheus-alertmanager", "amtool"
AGENTS = ("agent", "agent 2", "agent 3", "agent 4", "agent 5")  #: agents that Prometheus scrapes
STALLWATCH = str(Path(sys.executable).with_name("stallwatch"))
_PATIENCE = 120.0


def missing() -> list[str]:
    """Return the programs that are not installed."""
    return [name for name in (PROMETHEUS, PROMTOOL, ALERTMANAGER, AMTOOL) if shutil.which(name) is None]


def get(url: str, timeout: float = 60.0) -> str:
    """Return the body of a URL."""
    with urllib.request.urlopen(url, timeout=timeout) as answer:
        return str(answer.read().decode())


class Process:
    """A server that is stopped at the end of the test; its output is kept in a file."""

    def __init__(self, command: Sequence[str], folder: Path, name: str, environ: Mapping[str, str]) -> None:
        self.log = folder / f"{name}.log"
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                command,
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                cwd=folder,
                env=environ,
            )

    def until(self, url: str) -> None:
        """Wait until the server answers at `url`."""
        deadline = time.monotonic() + _PATIENCE
        while time.monotonic() < deadline:
            assert self.process.poll() is None, self.log.read_text()
            try:
                get(url)
                return
            except OSError:
                time.sleep(0.05)
        raise AssertionError(f"{url} does not answer: {self.log.read_text()[-2000:]}")

    def ask_to_stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Send the signal to the server."""
        if self.process.poll() is None:
            self.process.send_signal(number)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Send the signal to the server, and wait for its end."""
        if self.process.poll() is None:
            self.ask_to_stop(number)
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()

    def kill(self) -> None:
        """Kill the server and all its descendants at once."""
        if self.process.poll() is None:
            family = psutil.Process(self.process.pid).children(recursive=True)
            self.process.kill()
            for item in family:
                with contextlib.suppress(psutil.NoSuchProcess):
                    item.kill()
        self.process.wait()


class Chat:
    """A chat that stores messages with their times; it can be made to refuse them."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self.refuse = 0  #: status code of the answers; 0 accepts the message
        self.refused = 0
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if outer.refuse:
                    outer.refused += 1
                else:
                    outer.messages.append(json.loads(body))
                self.send_response(outer.refuse or 200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    @property
    def url(self) -> str:
        # A late answer of a busy machine would make the client send an accepted message again.
        return f"json://127.0.0.1:{self._server.server_port}/hook-s3cr3t?cto=60&rto=60"

    def about(self, run: str, status: str = "open", kind: str | None = None) -> list[dict[str, Any]]:
        """Return the messages about a run."""
        return [
            message
            for message in list(self.messages)
            if message["run"] == run
            and message["status"] == status
            and (kind is None or message["kind"] == kind)
        ]

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class Stack:
    """Prometheus, Alertmanager, the relay and a chat, connected as in docs/compose."""

    def __init__(self, folder: Path, root: Path, around: dict[str, str]) -> None:
        """Create the stack; `around` is the environment of its processes."""
        self.folder = folder
        self.root = root
        self.home = folder / "state"
        self.around = around
        self._chats = [Chat()]
        self.chat = self._chats[0]
        self.ports = {name: free_port() for name in ("prometheus", "alertmanager", "relay", *AGENTS)}
        self._agents = list(AGENTS)
        self._processes: dict[str, Process] = {}
        self._environs: dict[str, dict[str, str]] = {}
        self.orphans: list[psutil.Process] = []  #: trainings that continued after the end of their agent
        self._configure()

    def _configure(self) -> None:
        # Within its interval, Prometheus evaluates a group at a phase that a hash of its file's path
        # determines: a copy in the test's own folder has another phase each time. The same holds for targets
        # and their ports.
        rules = self.folder / "rules"
        shutil.copytree(self.root / "rules/prometheus", rules)
        compose = self.root / "docs/compose"
        changes = {
            "/etc/prometheus/rules": str(rules),
            "/etc/prometheus/targets": str(self.folder / "targets"),  # replaces targets.yml and targets.d
            "alertmanager:9093": f"127.0.0.1:{self.ports['alertmanager']}",
            "relay:19401": f"127.0.0.1:{self.ports['relay']}",
        }
        for name in ("prometheus.yml", "alertmanager.yml"):
            text = (compose / name).read_text()
            for before, after in changes.items():
                text = text.replace(before, after)
            (self.folder / name).write_text(text)
        targets = [f"127.0.0.1:{self.ports[agent]}" for agent in AGENTS]
        (self.folder / "targets.yml").write_text(json.dumps([{"targets": targets}]))

    stallwatch = STALLWATCH

    def get(self, name: str, path: str) -> str:
        """Return a server's answer to a GET request."""
        return get(f"{self.url(name)}{path}")

    def url(self, name: str) -> str:
        """Return the URL of a server."""
        return f"http://127.0.0.1:{self.ports[name]}"

    def alerts(self) -> str:
        """Return the alerts that Alertmanager holds."""
        return self.get("alertmanager", "/api/v2/alerts")

    def raise_alerts(self, *labels: Mapping[str, str]) -> None:
        """Post alerts to Alertmanager as Prometheus does."""
        body = json.dumps([{"labels": label} for label in labels]).encode()
        request = urllib.request.Request(
            f"{self.url('alertmanager')}/api/v2/alerts", body, {"Content-Type": "application/json"}
        )
        urllib.request.urlopen(request, timeout=120).close()

    def another_chat(self) -> Chat:
        """Return a further chat beside the default chat."""
        self._chats.append(Chat())
        return self._chats[-1]

    def configure_relay(self, text: str) -> None:
        """Write the relay's stallwatch.toml; call this before the relay starts."""
        (self.folder / "stallwatch.toml").write_text(text)

    def environ_of(self, name: str, **environ: str) -> None:
        """Set more environment variables of a server; call this before the server starts."""
        self._environs[name] = environ

    def start(self, *names: str) -> None:
        """Start the named servers, and wait until they answer all requests."""
        for name in names:
            getattr(self, f"_start_{name}")()
        for name in names:
            # Prometheus is healthy before it answers queries, which takes seconds on a busy machine.
            state = "healthy" if name == "relay" else "ready"
            self._processes[name].until(f"{self.url(name)}/-/{state}")

    def stop(self, name: str, number: signal.Signals = signal.SIGTERM) -> None:
        """Stop one server."""
        self._processes.pop(name).stop(number)

    def said(self, name: str) -> str:
        """Return the output of a server."""
        return self._processes[name].log.read_text()

    def _start_prometheus(self) -> None:
        self._processes["prometheus"] = Process(
            [
                PROMETHEUS,
                f"--config.file={self.folder / 'prometheus.yml'}",
                f"--storage.tsdb.path={self.folder / 'tsdb'}",
                f"--web.listen-address=127.0.0.1:{self.ports['prometheus']}",
                *_given(self.root / "docker-compose.yml"),
            ],
            self.folder,
            "prometheus",
            self.around,
        )

    def _start_alertmanager(self) -> None:
        self._processes["alertmanager"] = Process(
            [
                ALERTMANAGER,
                f"--config.file={self.folder / 'alertmanager.yml'}",
                f"--storage.path={self.folder / 'alertmanager'}",
                f"--web.listen-address=127.0.0.1:{self.ports['alertmanager']}",
                "--cluster.listen-address=",
            ],
            self.folder,
            "alertmanager",
            self.around,
        )

    def _start_relay(self) -> None:
        self._processes["relay"] = Process(
            [STALLWATCH, *self._relay_config(), "relay", "--port", str(self.ports["relay"])],
            self.folder,
            "relay",
            {**self.around, **self.environ(chats=True), **self._environs.get("relay", {})},
        )

    def _relay_config(self) -> list[str]:
        config = self.folder / "stallwatch.toml"
        return ["--config", str(config)] if config.exists() else []

    def environ(self, *, chats: bool) -> dict[str, str]:
        """Return the environment of Stallwatch's programs; with `chats`, they notify the chat directly."""
        found = {"STALLWATCH_HOME": str(self.home), "STALLWATCH_STALL_FLOOR_SECONDS": "6"}
        return {**found, "STALLWATCH_ALERTS_URLS": self.chat.url} if chats else found

    def train(self, name: str, *options: str, chats: bool = False) -> Training:
        """Start a run under `stallwatch run` with more `options`, which Prometheus scrapes."""
        return Training(self, name, chats, options)

    def number(self, query: str) -> float | None:
        """Return the highest value of a Prometheus query, or ``None`` if it has no value."""
        report = json.loads(self.get("prometheus", f"/api/v1/query?query={urllib.parse.quote(query)}"))
        return max((float(item["value"][1]) for item in report["data"]["result"]), default=None)

    def until_known(self, *runs: str, steps: int = 20) -> None:
        """Wait until Prometheus has seen `steps` steps of these runs; busy machines start slowly."""
        deadline = time.monotonic() + _PATIENCE
        for run in runs:
            while (self.number(f'stallwatch_step{{run="{run}"}}') or 0) < steps:
                assert time.monotonic() < deadline, f"{run} never got going: {self.said(run)[-2000:]}"
                time.sleep(0.1)

    def close(self) -> None:
        """Kill all processes at once: an agent that gets a signal waits for its last scrape."""
        for process in self._processes.values():
            process.kill()
        for orphan in self.orphans:
            with contextlib.suppress(psutil.NoSuchProcess):
                orphan.kill()
        for chat in self._chats:
            chat.close()


_TRAINING = """
import pathlib, sys, time
orders = pathlib.Path(sys.argv[1])
for step in range(1, 100000):
    print({"loss": 2.0 / step, "step": step}, f"step {step}/100000", flush=True)
    time.sleep(0.2)
    order = orders.read_text() if orders.exists() else ""
    while order == "stall":
        time.sleep(0.1)
        order = orders.read_text()
    if order == "crash":
        raise RuntimeError("CUDA error: out of memory")
    if order == "finish":
        break
"""


def _given(compose: Path) -> list[str]:
    """Return the flags of Prometheus in the compose file that determine when alerts are sent."""
    command = yaml.safe_load(compose.read_text())["services"]["prometheus"]["command"]
    return [flag for flag in command if flag.startswith("--rules.")]


class Training:
    """A training loop that follows orders."""

    def __init__(self, stack: Stack, name: str, chats: bool, options: Sequence[str]) -> None:
        self.name = name
        self._stack = stack
        self._orders = stack.folder / f"{name}.order"
        program = stack.folder / "training.py"
        program.write_text(_TRAINING)
        self._agent = stack._agents.pop()
        port = str(stack.ports[self._agent])
        self._process = Process(
            [
                *(STALLWATCH, "run", "--name", name, "--port", port, "--no-probe", *options, "--"),
                *(sys.executable, str(program), str(self._orders)),
            ],
            stack.folder,
            name,
            {**stack.around, **stack.environ(chats=chats)},
        )
        stack._processes[name] = self._process

    def order(self, what: str) -> None:
        """Send an order: ``stall``, ``go``, ``crash`` or ``finish``."""
        whole = self._orders.with_suffix(".new")
        whole.write_text(what)
        whole.replace(self._orders)

    def number(self, metric: str, label: str) -> float:
        """Return the current value of a metric at the run's agent."""
        (line,) = [
            line
            for line in self._stack.get(self._agent, "/metrics").splitlines()
            if line.startswith(metric + "{") and label in line
        ]
        return float(line.split()[-1])

    def kill_agent(self) -> None:
        """Kill the agent, which cannot send a last report."""
        self._stack.orphans += psutil.Process(self._process.process.pid).children(recursive=True)
        self._process.stop(signal.SIGKILL)

    @property
    def ended(self) -> bool:
        """True if the training and its agent have ended."""
        return self._process.process.poll() is not None

    @property
    def said(self) -> str:
        """Output of the run."""
        return self._process.log.read_text()
