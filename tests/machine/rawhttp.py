"""Requests as an attacker writes them, header by header, including those that no client library sends."""

from __future__ import annotations

import socket
from typing import NamedTuple


class Answer(NamedTuple):
    """Response of a server."""

    status: int
    headers: dict[str, str]
    body: str


def request(
    port: int, path: str, *headers: str, method: str = "GET", body: bytes = b"", version: str = "HTTP/1.1"
) -> Answer:
    """Send exactly these header lines; a switch of protocols is answered without a body."""
    length = [f"Content-Length: {len(body)}"] if body else []
    lines = [f"{method} {path} {version}", *headers, *length]
    with socket.create_connection(("127.0.0.1", port), timeout=120) as connection:
        connection.sendall("\r\n".join([*lines, "", ""]).encode() + body)
        with connection.makefile("rb") as stream:
            status = int(stream.readline().split()[1])
            found: dict[str, str] = {}
            while line := stream.readline().strip():
                name, _, value = line.decode("latin-1").partition(":")
                found[name.lower()] = (
                    f"{found[name.lower()]}, {value.strip()}" if name.lower() in found else value.strip()
                )
            if status == 101:
                return Answer(status, found, "")
            wanted = int(found["content-length"]) if "content-length" in found else -1
            return Answer(status, found, stream.read(wanted).decode("utf-8", "replace"))


def websocket(port: int, *headers: str, path: str = "/_stcore/stream") -> Answer:
    """Request a WebSocket as a browser does."""
    return request(
        port,
        path,
        "Connection: Upgrade",
        "Upgrade: websocket",
        "Sec-WebSocket-Version: 13",
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
        *headers,
    )
