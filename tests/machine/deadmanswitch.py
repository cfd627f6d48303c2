"""A dead-man's switch over real HTTP, for the tests of agents, of the relay and of the whole way."""

from __future__ import annotations

import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

_CHECK = "/ping/5ecret-uu1d"


class Switch:
    """A server that keeps the paths it was asked for, and when the check itself was pinged."""

    def __init__(self) -> None:
        self.paths: list[str] = []
        self.pinged: list[float] = []  #: by the monotonic clock
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
        """Of the check, with a secret in it."""
        return f"http://127.0.0.1:{self._server.server_port}{_CHECK}?create=1"

    def wait_for(self, count: int) -> None:
        """Wait for so many requests."""
        with self._came:
            assert self._came.wait_for(lambda: len(self.paths) >= count, timeout=120)

    def silent(self, seconds: float) -> bool:
        """Whether no ping came for so long."""
        return time.monotonic() - self.pinged[-1] > seconds

    def close(self) -> None:
        """End the server."""
        self._server.shutdown()
        self._server.server_close()
