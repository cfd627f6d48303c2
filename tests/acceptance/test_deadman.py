"""The relay's dead-man's switch hears that all is well, until Prometheus is gone."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

pytestmark = [pytest.mark.server, pytest.mark.timeout(300)]

# Alertmanager forgets an alert 4 × 10 s after it came last, and tells of that with its group's interval.
SILENT_AFTER = 4 * 10 + 30 + 15


class Switch:
    """Remembers when it was pinged."""

    def __init__(self) -> None:
        self.pinged: list[float] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                if self.path == "/check":
                    outer.pinged.append(time.monotonic())
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}/check"

    def silent(self, seconds: float) -> bool:
        """Whether no ping came for so long."""
        return time.monotonic() - self.pinged[-1] > seconds


@pytest.fixture
def switch() -> Iterator[Switch]:
    made = Switch()
    yield made
    made.server.shutdown()
    made.server.server_close()


def test_the_pings_stop_when_prometheus_does(stack: Any, script: Any, switch: Switch) -> None:
    stack.environ_of("relay", STALLWATCH_ALERTS_DEADMAN_URL=switch.url, STALLWATCH_ALERTS_DEADMAN_SECONDS="1")
    stack.start("alertmanager", "relay")
    script.at(4, lambda: stack.start("prometheus"))
    script.between(4, 30, "the watchdog came all the way", lambda: switch.pinged)
    script.at(30, lambda: stack.stop("prometheus"))
    script.between(30 + 5, 30 + SILENT_AFTER, "silence", lambda: switch.pinged and switch.silent(5))
    script.run(settle=5)
    assert switch.silent(5)
    assert "the dead-man's switch gets no ping: StallwatchWatchdog does not fire here" in stack.said("relay")
