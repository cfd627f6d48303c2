"""Who can reach an address that a server is bound to."""

from __future__ import annotations

import ipaddress


def is_own_address(host: str) -> bool:
    """Whether only programs on this machine can; a name other than localhost is taken for one of others."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
