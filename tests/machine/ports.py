"""Free ports for the servers that tests start."""

from __future__ import annotations

import contextlib
import random
import socket

_GIVEN: set[int] = set()


def free_port() -> int:
    """Return a port that is free, and that the system gives to no connection before the server starts."""
    while True:
        # Below the range of connections in Linux (net.ipv4.ip_local_port_range: from 32768 on).
        port = random.randrange(20_000, 32_000)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            if port not in _GIVEN:
                _GIVEN.add(port)
                return port
