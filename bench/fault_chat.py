"""A simulated chat that can be down, slow, or faulty. It stores the accepted messages in order."""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import threading
import time
from collections.abc import Callable
from typing import Any

_OK = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
_ANSWERS = {
    "500": b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 4\r\nConnection: close\r\n\r\noops",
    "429": b"HTTP/1.1 429 Slow down\r\nRetry-After: 1\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
    "malformed": b"HTTP/1.1 banana\r\n\r\n",
    "garbage": b"\x16\x03\x01\x00\x02",
    "empty": b"",
}


class Chat:
    """An HTTP server that acts as a chat. It reserves its port on 127.0.0.1 even while the chat is down.

    `script` lists the outcomes of the next requests. Requests after the last outcome succeed. The possible
    outcomes are ``ok``, ``500``, ``429``, ``malformed``, ``garbage``, ``empty``, ``slow``, ``reset``,
    ``taken-reset``, and ``cut``. The last three break the connection: ``reset`` during the request,
    ``taken-reset`` after the chat accepted the message, and ``cut`` during the response.
    """

    def __init__(self) -> None:
        self.script: list[str] = []
        self.taken: list[dict[str, Any]] = []
        self.requests = 0
        self.on_request: Callable[[], None] = lambda: None
        self._lock = threading.Lock()
        self._held = socket.socket()
        self._held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._held.bind(("127.0.0.1", 0))
        self.port = int(self._held.getsockname()[1])
        self._listening: socket.socket | None = None
        self.up()

    @property
    def url(self) -> str:
        return f"json://127.0.0.1:{self.port}/hook?cto=5&rto=5"

    def up(self) -> None:
        """Start accepting connections."""
        if self._listening is None:
            listening = socket.socket()
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(("127.0.0.1", self.port))
            listening.listen(64)
            self._listening = listening
            threading.Thread(target=self._accept, args=(listening,), daemon=True).start()

    def down(self) -> None:
        """Refuse every connection until `up` is called."""
        if self._listening is not None:
            with contextlib.suppress(OSError):
                self._listening.shutdown(socket.SHUT_RDWR)
            self._listening.close()
            self._listening = None

    def close(self) -> None:
        self.down()
        self._held.close()

    def _accept(self, listening: socket.socket) -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError), connection:
            connection.settimeout(10)
            self.on_request()
            with self._lock:
                self.requests += 1
                what = self.script.pop(0) if self.script else "ok"
            if what == "reset":
                connection.recv(100)
                _reset(connection)
                return
            body = _body(connection)
            if body is None:
                return
            if what in _ANSWERS:
                connection.sendall(_ANSWERS[what])
                return
            if what == "slow":
                time.sleep(2.0)
            with self._lock:
                self.taken.append(body)
            if what == "taken-reset":
                _reset(connection)
            elif what == "cut":
                connection.sendall(_OK[:20])
            else:
                connection.sendall(_OK)


def _reset(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def _body(connection: socket.socket) -> dict[str, Any] | None:
    """Return the posted JSON, or ``None`` if the sender exited in the middle of the request."""
    data = b""
    while b"\r\n\r\n" not in data:
        got = connection.recv(65536)
        if not got:
            return None
        data += got
    head, _, body = data.partition(b"\r\n\r\n")
    fields = dict(line.split(": ", 1) for line in head.decode("latin-1").split("\r\n")[1:] if ": " in line)
    length = int({name.lower(): value for name, value in fields.items()}["content-length"])
    while len(body) < length:
        got = connection.recv(65536)
        if not got:
            return None
        body += got
    decoded: dict[str, Any] = json.loads(body)
    return decoded
