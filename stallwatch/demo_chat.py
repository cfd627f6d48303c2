"""Implement the demo's chat: an HTTP endpoint that prints every message it receives.

``python -m stallwatch.demo_chat --host 0.0.0.0 --port 8080`` starts an endpoint that other hosts can reach.
"""

from __future__ import annotations

import argparse
import json
import signal
import textwrap
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from stallwatch_alerts.notice import SIGNS


@contextmanager
def chat_endpoint(show: Callable[[str], None], host: str = "127.0.0.1", port: int = 0) -> Iterator[str]:
    """Run an endpoint that passes messages to `show`. Yield its Apprise URL. Port 0 selects any free port."""
    handler = type("Handler", (_Handler,), {"show": staticmethod(show)})
    with ThreadingHTTPServer((host, port), handler) as server:
        threading.Thread(target=server.serve_forever, name="demo-chat", daemon=True).start()
        try:
            yield f"json://{host}:{server.server_port}/"
        finally:
            server.shutdown()


class _Handler(BaseHTTPRequestHandler):
    show: Callable[[str], None]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        try:
            message = json.loads(body)
        except ValueError:
            self.send_error(400, "not JSON")
            return
        self.show(render(message))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Do not log requests, because the output contains only the messages."""


def render(message: dict[str, Any], width: int = 96) -> str:
    """Return the lines of a message, with a prefix that distinguishes them from the training's output."""
    stage = str(message.get("outcome") or message.get("status", "?"))
    facts = [str(message[key]) for key in ("severity", "run", "rule") if message.get(key)]
    sign = SIGNS.get(message.get("type", ""), "⚪")  # the message type of Apprise is the notice's level
    lines = [f"{sign} {' · '.join([stage, *facts])}", str(message.get("title", ""))]
    for paragraph in str(message.get("text") or message.get("message") or "").splitlines():
        lines += textwrap.wrap(paragraph, width, subsequent_indent="  ") or [""]
    return "\n".join(f"chat │ {line}".rstrip() for line in ["", *lines, ""])


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve the endpoint and print posted messages until a signal arrives."""
    parser = argparse.ArgumentParser(prog="python -m stallwatch.demo_chat")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8080)
    options = parser.parse_args(arguments)
    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    with chat_endpoint(lambda text: print(text, flush=True), options.host, options.port) as url:
        print(f"chat on {url}", flush=True)
        ended.wait()


if __name__ == "__main__":
    main()
