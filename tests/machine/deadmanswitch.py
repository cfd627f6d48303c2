"""A dead man's switch over real HTTP, for the tests of agents, relay and acceptance."""

from __future__ import annotations

import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

_CHECK = "/ping/5ecret-uu1d"


class Switch:
    """Server that records the requested paths, and the times of the check's pings."""

    def __init__(self) -> None:
        self.paths: list[str] = []
        self.pinged: list[float] = []  #: times by the monotonic clock
        self.status = 200
        self._came = threading.Condition()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                with outer._came:
                    outer.paths.append(self.path)
                    if urlsplit(self.path).path == _CHECK:
                        outer.pinged.append(time.monotonic())
                    outer._came.notify_all()
                self.send_response(outer.status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    @property
    def url(self) -> str:
        """URL of the check, with a secret in it."""
        return f"http://127.0.0.1:{self._server.server_port}{_CHECK}?create=1"

    def wait_for(self, count: int) -> None:
        """Wait for `count` requests."""
        with self._came:
            assert self._came.wait_for(lambda: len(self.paths) >= count, timeout=120)

    def silent(self, seconds: float) -> bool:
        """Return True if no ping comes for `seconds`."""
        return time.monotonic() - self.pinged[-1] > seconds

    def close(self) -> None:
        """Stop the server."""
        self._server.shutdown()
        self._server.server_close()
