"""Running trainings, a real Prometheus that scrapes them, and a dashboard on either source."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from ports import free_port
from stage import RECORDING, Stage

PROMETHEUS = shutil.which("prometheus")
SOURCES = ("embedded", "prometheus")
#: a stalled run for tests that act on it, by source
HANGING = {"embedded": "hangs-one", "prometheus": "hangs-two"}

# Training that prints steps, then more and more trace-cache messages, hostile text among them, then nothing.
_HANGS = """
import time
def say(text):
    print(text, flush=True)
say("<script>alert('log')</script> <img src=x onerror=alert('img')> **bold** [x](javascript:alert(1))")
for step in range(1, 41):
    time.sleep(0.3)
    say(f"step {step}/400 loss {3 / step:.4f}")
    for n in range(step // 10):
        say(f"Invalidate trace cache @ step {n}: expected module 19, but got module 11")
time.sleep(3600)
"""
HANGS = [sys.executable, "-c", _HANGS]
_STEADY = """
import time
for step in range(1, 40000):
    print(f"step {step}/40000 loss {3 / step:.4f}", flush=True)
    time.sleep(0.2)
"""
STEADY = [sys.executable, "-c", _STEADY]


def printed(recording: str, code: int) -> list[str]:
    """Return a command that prints the output of a recorded run, and ends like it."""
    logs = sorted(map(str, (RECORDING.parent / recording).rglob("*.log")))
    return ["sh", "-c", f'cat "$@"; exit {code}', "sh", *logs]


class Chat:
    """Chat that accepts all posts."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                outer.messages.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *args: object) -> None:
                """Print nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        # A late answer of a busy machine would make the client send an accepted message again.
        self.url = f"json://127.0.0.1:{self._server.server_port}/hook-s3cr3t?cto=60&rto=60"
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()


class Scene(Stage):
    """Two runs that hang, one that trains and one that failed; `urls` holds the dashboard of each source."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder / "home")
        self.chat = Chat()
        ports = {name: free_port() for name in (*HANGING.values(), "steady", "crashed", "server", *SOURCES)}
        self.urls = {source: f"http://127.0.0.1:{ports[source]}" for source in SOURCES}
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        try:
            self._fill(folder, ports)
        except BaseException:  # without this, the caller would never get the scene to close it
            self.close()
            raise

    def _fill(self, folder: Path, ports: dict[str, int]) -> None:
        found = {"STALLWATCH_ALERTS_URLS": self.chat.url}
        server = {"STALLWATCH_DASHBOARD_PROMETHEUS_URL": f"http://127.0.0.1:{ports['server']}"}
        self.processes = {
            "embedded": self.beginning(ports["embedded"], **found),
            "prometheus": self.beginning(ports["prometheus"], **found, **server),
        }
        for name in HANGING.values():
            self.run(name, HANGS, floor=3.0, port=ports[name])
        self.run("steady", STEADY, floor=600.0, port=ports["steady"])
        self.run("crashed", printed("zero3-save-unwrapped-model", 1), floor=600.0, port=ports["crashed"])
        targets = [f"127.0.0.1:{ports[name]}" for name in (*HANGING.values(), "steady", "crashed")]
        self._scrape(folder, ports["server"], targets)
        for process in self.processes.values():
            self.answering(process)

    def close(self) -> None:
        """Stop all processes."""
        super().close()
        self.chat.close()

    def _scrape(self, folder: Path, port: int, targets: list[str]) -> None:
        job = {
            "job_name": "stallwatch",
            "scrape_interval": "1s",
            "scrape_timeout": "1s",
            "static_configs": [{"targets": targets}],
        }
        (folder / "prometheus.yml").write_text(json.dumps({"scrape_configs": [job]}))
        self.start(
            [
                str(PROMETHEUS),
                f"--config.file={folder / 'prometheus.yml'}",
                f"--storage.tsdb.path={folder / 'tsdb'}",
                f"--web.listen-address=127.0.0.1:{port}",
            ]
        )
        deadline = time.monotonic() + 120
        while True:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/-/ready", timeout=60).close()
                return
            except (OSError, urllib.error.URLError):
                assert time.monotonic() < deadline, "Prometheus does not come up"
                time.sleep(0.1)
