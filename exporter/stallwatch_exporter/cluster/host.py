"""Identify an agent's host by an ID, and by a Unix socket that the run's agents on the host share.

Under ``srun … stallwatch run``, every rank has an agent. The agent that binds the socket posts for all
agents of the host. When this agent ends, the kernel releases the socket's name, and another agent can bind
it.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import ipaddress
import os
import socket
import struct
import sys
import uuid
from pathlib import Path

import psutil

from stallwatch_exporter.probe.clock import namespace

_PATH = 100  # Maximum length of a socket's path, in bytes. On macOS, sockaddr_un has room for 104 bytes.


def host_id(hostname: str) -> str:
    """Return an ID that distinguishes this host from all others, even from hosts that have the same name.

    The ID includes the network namespace because an abstract socket is visible only within its namespace
    (unix(7)).
    """
    where = namespace("net") or f"{uuid.getnode():x}"
    return hashlib.sha256(f"{hostname} {where}".encode()).hexdigest()[:12]


def is_this_host(name: str, hostname: str) -> bool:
    """Return whether a hostname or address refers to this host. No DNS query is made.

    A loopback address never counts as this host, because every host has the same loopback addresses.
    """
    try:
        address = ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return name.partition(".")[0].lower() == hostname.partition(".")[0].lower() != ""
    if address.is_loopback:
        return False
    with contextlib.suppress(OSError):
        for entries in psutil.net_if_addrs().values():
            if any(entry.address.partition("%")[0] == str(address) for entry in entries):
                return True
    return False


def split_address(text: str) -> tuple[str, int | None]:
    """Return the host and port in ``HOST``, ``HOST:PORT``, or ``[HOST]:PORT``. A missing port is ``None``."""
    host, colon, port = text.rpartition(":")
    if not colon or (":" in host and not host.endswith("]")):
        return text.strip("[]"), None
    valid = port.isascii() and port.isdecimal() and 0 < int(port) <= 65535
    return host.strip("[]"), int(port) if valid else None


def join_address(host: str, port: int) -> str:
    """Return ``HOST:PORT``. An IPv6 address is enclosed in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def socket_name(folder: Path, key: str, host: str) -> str | None:
    """Return the name of the run's shared socket on this host, or ``None`` if no name is possible.

    On Linux, the socket name is abstract, so no file is created.
    """
    if sys.platform == "linux":
        return f"\0stallwatch-{os.geteuid()}-{key}-{host}"
    if not hasattr(socket, "AF_UNIX"):
        return None
    path = str(folder / f"{key}-{host}.sock")
    return path if len(os.fsencode(path)) <= _PATH else None


def bind(name: str) -> socket.socket | None:
    """Bind the socket, or return ``None`` if another agent has bound it. Raises `OSError` on failure."""
    if not name.startswith("\0"):
        Path(name).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        try:
            bound.bind(name)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            if name.startswith("\0") or _is_answered(name):
                bound.close()
                return None
            Path(name).unlink(missing_ok=True)  # an agent that was killed left the socket behind
            bound.bind(name)
        bound.listen(128)
    except BaseException:
        bound.close()
        raise
    return bound


def _is_answered(name: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as trial:
        return trial.connect_ex(name) == 0


def is_own_peer(connection: socket.socket) -> bool:
    """Return whether the process at the other end of a Unix socket belongs to this account.

    If the system does not report the account, the permissions of the socket's folder exclude other accounts.
    """
    if not hasattr(socket, "SO_PEERCRED"):
        return True
    size = struct.calcsize("3i")
    _, user, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
    return bool(user == os.geteuid())
