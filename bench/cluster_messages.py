"""An HTTP server that receives messages and acts as a chat."""

from __future__ import annotations

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Receiver:
    """An HTTP server that stores the JSON body and the arrival time of each request."""

    def __init__(self, address: str = "127.0.0.1") -> None:
        self.messages: list[tuple[float, dict[str, Any]]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                outer.messages.append((time.time(), json.loads(body)))
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer((address, 0), Handler)
        self.url = f"json://{address}:{self._server.server_port}/hook"
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def __enter__(self) -> Receiver:
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._server.server_close()


def opens(body: dict[str, Any]) -> bool:
    """Return True if the message opens an incident, which means that it is the incident's first message."""
    return body.get("status") == "open" or body.get("outcome") == "crashed"
