"""Limit the number of connections to the server and the time that the server waits for a client.

Uvicorn 0.54 has neither limit. It waits for a request indefinitely and accepts up to 2,048 connections at a
time. When all file descriptors are in use, asyncio repeatedly writes a traceback for each connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import time

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

_ACCEPTED = 64  # number of connections accepted at a time, before any of them can be closed
_DESCRIPTORS = 4096  # limit on open file descriptors; each open page needs four of them


class BoundedProtocol(H11Protocol):
    """A connection to a server that accepts at most `most` connections.

    If there are more connections, the connection that has waited longest is closed. The headers of a request
    must arrive within `seconds`. While sending a body or reading a response, the peer can pause for at most
    the same time. WebSockets count toward the limit, but have no time limit in this class, because
    uvicorn pings their peers.
    """

    most = 256
    seconds = 10.0
    clock = staticmethod(time.monotonic)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Accept the connection. If `most` is exceeded, close the connection that has waited longest."""
        super().connection_made(transport)
        self._unsent = 0
        self._since = self.clock()
        if len(self.connections) > self.most:
            peers = [peer for peer in self.connections if isinstance(peer, BoundedProtocol)]
            min((peer for peer in peers if peer._is_waiting()), key=lambda peer: peer._since)._end()
        self.watch()

    def data_received(self, data: bytes) -> None:
        """Handle received data. If a request's headers are complete, record that the peer is active."""
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self._since = self.clock()

    def watch(self) -> None:
        """Close the connection if the peer is overdue. Otherwise, repeat the check later."""
        if self not in self.connections:  # the connection is closed or has become a WebSocket
            return
        unsent = self.transport.get_write_buffer_size()
        if unsent != self._unsent or not self._is_waiting():
            self._unsent, self._since = unsent, self.clock()
        if self.clock() - self._since >= self.seconds:
            self._end()
        else:
            self.loop.call_later(self.seconds / 10, self.watch)

    def _is_waiting(self) -> bool:
        """Return whether the server waits for the peer to send a request or to read a response."""
        if self.cycle is None or self.cycle.response_complete or self.transport.get_write_buffer_size():
            return True
        return self.cycle.more_body and not self.flow.read_paused

    def _end(self) -> None:
        self.connections.discard(self)
        self.transport.abort()  # `close` would wait until the peer has read the response


def bound() -> None:
    """Apply the limits to all servers that this process starts later. Streamlit has no such settings."""
    with contextlib.suppress(ImportError, OSError, ValueError):  # Windows has no `resource` module
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(max(soft, _DESCRIPTORS), hard), hard))
    startup = uvicorn.Server.startup

    async def bounded(self: uvicorn.Server, sockets: list[socket.socket] | None = None) -> None:
        queue = self.config.backlog
        self.config.http_protocol_class, self.config.backlog = BoundedProtocol, _ACCEPTED
        await startup(self, sockets)
        for listener in (each for server in self.servers for each in server.sockets):
            with socket.socket(fileno=os.dup(listener.fileno())) as same:
                # Restore the backlog: asyncio uses the same number for the backlog and for the connections
                # that it accepts at a time.
                same.listen(queue)

    uvicorn.Server.startup = bounded  # type: ignore[method-assign]
