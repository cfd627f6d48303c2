"""Free ports for the servers that tests start."""

from __future__ import annotations

import contextlib
import random
import socket

_GIVEN: set[int] = set()


def free_port() -> int:
    """A port that nobody has right now, and that no connection is given before its server takes it."""
    while True:
        # Below those that Linux gives to connections (net.ipv4.ip_local_port_range: from 32768 on).
        port = random.randrange(20_000, 32_000)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            if port not in _GIVEN:
                _GIVEN.add(port)
                return port
