"""Limit the number of connections to the pages, and how long a connection may block the server.

Uvicorn limits neither (0.54): it waits for a request indefinitely, and accepts up to 2,048 connections at a
time. At the limit of descriptors, asyncio then writes a traceback for each of them, again and again.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import time

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

_ACCEPTED = 64  # number of connections accepted at a time, before any can be closed
_DESCRIPTORS = 4096  # a page takes four, including its Streamlit event loop


class BoundedProtocol(H11Protocol):
    """A connection, of at most `most`; the connection that waits longest is closed for a new one.

    The head of a request must arrive within `seconds`. The peer may pause sending a body, or reading an
    answer, for the same time. Websockets count, but uvicorn itself pings them.
    """

    most = 256
    seconds = 10.0
    clock = staticmethod(time.monotonic)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Close the longest-waiting connection if there are too many, or this one if no other waits."""
        super().connection_made(transport)
        self._unsent = 0
        self._since = self.clock()
        if len(self.connections) > self.most:
            peers = [peer for peer in self.connections if isinstance(peer, BoundedProtocol)]
            min((peer for peer in peers if peer._is_waiting()), key=lambda peer: peer._since)._end()
        self.watch()

    def data_received(self, data: bytes) -> None:
        """Record the time, except within the head of a request."""
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self._since = self.clock()

    def watch(self) -> None:
        """Close the connection if it is overdue, otherwise check again later; ignore a websocket."""
        if self not in self.connections:
            return
        unsent = self.transport.get_write_buffer_size()
        if unsent != self._unsent or not self._is_waiting():
            self._unsent, self._since = unsent, self.clock()
        if self.clock() - self._since >= self.seconds:
            self._end()
        else:
            self.loop.call_later(self.seconds / 10, self.watch)

    def _is_waiting(self) -> bool:
        """Return whether the peer must act: send a head or part of a body, or read part of an answer."""
        if self.cycle is None or self.cycle.response_complete or self.transport.get_write_buffer_size():
            return True
        return self.cycle.more_body and not self.flow.read_paused

    def _end(self) -> None:
        self.connections.discard(self)
        self.transport.abort()  # `close` would wait until the peer has read the answer


def bound() -> None:
    """Limit all servers that this process starts later, however Streamlit configures and runs them."""
    with contextlib.suppress(ImportError, OSError, ValueError):  # Windows has no such limit
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
                # Restore the queue's length, because asyncio has one number for the queue and for accepting.
                same.listen(queue)

    uvicorn.Server.startup = bounded  # type: ignore[method-assign]
