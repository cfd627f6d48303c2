"""Redirect requests to a chat's host to a server of the test.

All code in front of the network is real: Apprise, ``requests``, headers, encodings, a socket. Only the
address is replaced, in ``requests.adapters.HTTPAdapter.send``, because the chats' hosts use HTTPS. A request
to any other host fails the test.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest
import requests


@dataclass(frozen=True)
class Call:
    """A request that the server received."""

    host: str
    path: str
    query: dict[str, str]
    headers: Mapping[str, str]
    body: bytes
    method: str = "POST"

    @property
    def json(self) -> dict[str, Any]:
        found = json.loads(self.body)
        assert isinstance(found, dict)
        return found


@dataclass(frozen=True)
class Reply:
    """Answer of the server."""

    status: int = 200
    body: str = ""
    headers: dict[str, str] = field(default_factory=dict)


def reply(body: Mapping[str, Any], status: int = 200, **headers: str) -> Reply:
    """Return a JSON reply; ``retry_after="3"`` becomes the header ``Retry-After``."""
    named = {name.replace("_", "-").title(): value for name, value in headers.items()}
    return Reply(status, json.dumps(body, ensure_ascii=False), named)


class Server:
    """A chat server: `protocol` answers each call. `calls` holds all calls, `taken` the accepted ones."""

    def __init__(self, protocol: Callable[[Call], Reply]) -> None:
        self.calls: list[Call] = []
        self.taken: list[Call] = []
        # replies that come first, in this order; ``None`` for the protocol's own reply
        self.force: list[Reply | None] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.0"

            def do_POST(self) -> None:
                url = urlsplit(self.path)
                body = self.rfile.read(int(self.headers["Content-Length"]))
                query = dict(parse_qsl(url.query, keep_blank_values=True))
                call = Call(self.headers["Host"], url.path, query, self.headers, body, self.command)
                outer.calls.append(call)
                forced = outer.force.pop(0) if outer.force else None
                said = forced or protocol(call)
                if forced is None and said.status < 300:
                    outer.taken.append(call)
                self.send_response(said.status)
                data = said.body.encode()
                for name, value in {**said.headers, "Content-Length": str(len(data))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(data)

            do_PATCH = do_POST

            def log_message(self, *args: object) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True).start()

    @property
    def port(self) -> int:
        return int(self._http.server_port)

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()


class Edge:
    """Map of hosts to servers of the test."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._servers: dict[str, Server] = {}
        self.down: set[str] = set()
        send = requests.adapters.HTTPAdapter.send
        outer = self

        def redirected(adapter: Any, request: requests.PreparedRequest, **options: Any) -> requests.Response:
            url = urlsplit(request.url or "")
            host = str(url.hostname)
            if host in ("127.0.0.1", "localhost"):
                return send(adapter, request, **options)
            if host in outer.down:  # urllib3's message, which contains the whole URL
                said = f"Max retries exceeded with url: {request.url} (Caused by NameResolutionError)"
                raise requests.ConnectionError(said, request=request)
            assert host in outer._servers, f"nobody should post to {host}"
            assert url.scheme == "https", "a secret in the clear"
            request.headers["Host"] = host
            request.url = url._replace(
                scheme="http", netloc=f"127.0.0.1:{outer._servers[host].port}"
            ).geturl()
            return send(adapter, request, **options)

        patch.setattr(requests.adapters.HTTPAdapter, "send", redirected)

    def serve(self, host: str, protocol: Callable[[Call], Reply]) -> Server:
        """Start a server in place of the host."""
        self._servers[host] = Server(protocol)
        return self._servers[host]

    def close(self) -> None:
        for server in self._servers.values():
            server.close()
