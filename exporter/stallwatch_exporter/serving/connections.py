"""Limit the number of connections to the HTTP servers of Stallwatch, and the time to wait for each client.

Each connection uses a thread and a file descriptor, but the agent also needs descriptors to watch the run.
"""

from __future__ import annotations

import contextlib
import io
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from http.client import LineTooLong
from http.server import BaseHTTPRequestHandler, HTTPServer
from operator import itemgetter
from socketserver import ThreadingMixIn
from typing import Any

_HEAD = 64 << 10  # maximum size of a request's head in bytes
_LEAVING = 1.0  # maximum number of seconds to wait until a thread detects the end of its connection


class Peer:
    """The client of a connection, and the deadline for its data."""

    def __init__(self, connection: socket.socket, deadline: float) -> None:
        self._connection = connection
        self.deadline: float | None = deadline  #: ``None`` while the server handles a request

    def end(self, how: int = socket.SHUT_RDWR) -> None:
        """End the connection. If `how` is `SHUT_RD`, end it only if its thread is waiting for a request."""
        with contextlib.suppress(OSError):
            # Do not call `SSLSocket.shutdown`, which removes the TLS state that the thread uses.
            socket.socket.shutdown(self._connection, how)


class BoundedServer(ThreadingMixIn, HTTPServer):
    """Server for at most `most` connections. A new client replaces the client that has been idle longest.

    The head of a request, including the TLS handshake, must arrive within `seconds`. A body or a response
    is transferred in pieces of at most `piece` bytes. The limit of `seconds` also applies to each piece,
    and all pieces together must be transferred within `whole` seconds.
    """

    daemon_threads = True
    request_queue_size = 128
    most = 64
    seconds = 10.0
    whole = 60.0
    piece = 64 << 10
    clock = staticmethod(time.monotonic)

    def __init__(
        self,
        address: tuple[str, int],
        handler: type[BoundedHandler],
        context: ssl.SSLContext | None = None,
        *,
        bound: socket.socket | None = None,
    ) -> None:
        """Bind to the address, or serve on the `bound` socket.

        Raises `OSError` if the address is not available.
        """
        host, port = address
        found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        self.address_family = found[0][0]
        self._context = context
        self._changed = threading.Condition()
        self.peers: dict[Any, Peer] = {}  #: clients by connection
        super().__init__((str(found[0][4][0]), port), handler, bind_and_activate=False)
        if bound is not None:
            self.socket.close()
            self.socket = bound
            return
        try:
            self.server_bind()
            self.server_activate()
        except BaseException:
            self.socket.close()
            raise

    def get_request(self) -> tuple[Any, Any]:
        """Accept a connection. Its thread performs the TLS handshake."""
        request, address = super().get_request()
        if self._context is not None:
            request = self._context.wrap_socket(request, server_side=True, do_handshake_on_connect=False)
        return request, address

    def process_request(self, request: Any, client_address: Any) -> None:
        """Start a thread for the connection. If there are too many connections, first end an idle one."""
        with self._changed:
            if self._is_full():
                waiting = [(due, peer) for peer in self.peers.values() if (due := peer.deadline) is not None]
                if waiting:
                    min(waiting, key=itemgetter(0))[1].end()
                    self._changed.wait_for(lambda: not self._is_full(), _LEAVING)
                if self._is_full():
                    self.shutdown_request(request)
                    return
            self.peers[request] = Peer(request, self.next_deadline())
        super().process_request(request, client_address)

    def finish_request(self, request: Any, client_address: Any) -> None:
        """Handle the connection in its own thread."""
        if self._context is not None:
            request.do_handshake()
        super().finish_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Close the connection and free its slot."""
        with self._changed:
            super().shutdown_request(request)
            self.peers.pop(request, None)
            self._changed.notify_all()

    def shutdown(self) -> None:
        """End the server's loop."""
        with contextlib.suppress(OSError):
            # This call wakes the loop on Linux. On other systems, the loop ends at its next poll.
            self.socket.shutdown(socket.SHUT_RDWR)
        super().shutdown()

    def server_close(self) -> None:
        """Close the server and all connections, and wait briefly for responses that are in progress."""
        super().server_close()
        with self._changed:
            for how in (socket.SHUT_RD, socket.SHUT_RDWR):
                for peer in self.peers.values():
                    peer.end(how)
                self._changed.wait_for(lambda: not self.peers, _LEAVING)

    def service_actions(self) -> None:
        """End overdue connections. The server's loop calls this method at least twice a second."""
        with self._changed:
            now = self.clock()
            for peer in self.peers.values():
                if (due := peer.deadline) is not None and due <= now:
                    peer.end()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print nothing, because a closed connection needs no traceback on the terminal."""

    def next_deadline(self) -> float:
        """Return the deadline for data that is expected from now on."""
        return self.clock() + self.seconds

    def pieces(self, peer: Peer, length: int) -> Iterator[int]:
        """Yield the sizes in which to read or write `length` bytes, and set a deadline for each piece."""
        end = self.clock() + self.whole
        for start in range(0, length, self.piece):
            peer.deadline = min(self.next_deadline(), end)
            yield min(self.piece, length - start)

    def _is_full(self) -> bool:
        return len(self.peers) >= self.most


class ServerThread:
    """Server that runs in its own thread until it is closed."""

    def __init__(self, server: BoundedServer, name: str, poll_seconds: float = 0.5) -> None:
        self._server = server
        self._thread = threading.Thread(
            target=server.serve_forever, args=(poll_seconds,), name=name, daemon=True
        )
        self._thread.start()

    @property
    def port(self) -> int:
        """Port that the server is bound to."""
        return int(self._server.server_address[1])

    def close(self) -> None:
        """Stop accepting connections and free the port."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class BoundedHandler(BaseHTTPRequestHandler):
    """Handler for a connection to a `BoundedServer`. Subclasses call `arrived` when a request is complete."""

    server: BoundedServer
    rfile: io.BufferedReader

    def setup(self) -> None:
        """Open the streams of the connection."""
        super().setup()
        self._peer = self.server.peers[self.request]
        self.wfile = _Answer(self.connection, self._peer, self.server)

    def handle_one_request(self) -> None:
        """Wait for a request. On a reused connection, the deadline is set when the first byte arrives."""
        if self._peer.deadline is None:
            self._peer.deadline = self.server.next_deadline()
            self.rfile.peek(1)
            self._peer.deadline = self.server.next_deadline()
        super().handle_one_request()

    def parse_request(self) -> bool:
        """Read the head of a request, whose total size is limited."""
        stream = self.rfile
        self.rfile = _Head(stream)  # type: ignore[assignment]
        try:
            return super().parse_request()
        finally:
            self.rfile = stream

    def has_one_end(self) -> bool:
        """Return whether a proxy and this server are certain to agree on where the request ends."""
        lengths = self.headers.get_all("Content-Length", [])
        return not ("Transfer-Encoding" in self.headers or len(lengths) > 1 or self.headers.defects)

    def body(self, length: int) -> bytes:
        """Read the body of a request. The body is shorter than `length` if the connection ends too early."""
        body = b"".join(self.rfile.read(size) for size in self.server.pieces(self._peer, length))
        self.arrived()
        return body

    def arrived(self) -> None:
        """Record that the request is complete, so that the server no longer waits for this client."""
        self._peer.deadline = None

    def log_message(self, format: str, *args: Any) -> None:
        """Do not log requests."""


class _Head:
    """Reader of a request's head. Raises `LineTooLong` if the head has more than `_HEAD` bytes."""

    def __init__(self, stream: io.BufferedReader) -> None:
        self._stream = stream
        self._left = _HEAD

    def readline(self, most: int) -> bytes:
        line = self._stream.readline(min(most, self._left + 1))
        self._left -= len(line)
        if self._left < 0:
            raise LineTooLong("header")
        return line


class _Answer(io.BufferedIOBase):
    """Writer for a connection whose client must read the response in time."""

    def __init__(self, connection: socket.socket, peer: Peer, server: BoundedServer) -> None:
        self._connection = connection
        self._peer = peer
        self._server = server

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        before = self._peer.deadline  # restored later, because a body can follow after "100 Continue"
        rest = memoryview(data)
        try:
            for size in self._server.pieces(self._peer, len(rest)):
                self._connection.sendall(rest[:size])
                rest = rest[size:]
        # wsgiref prints a traceback for every error except errors of connections without TLS. Therefore,
        # replace TLS errors.
        except ssl.SSLError as error:
            raise BrokenPipeError from error
        finally:
            self._peer.deadline = before
        return len(data)
