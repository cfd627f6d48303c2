"""OpenSSH servers on the hosts of ``namespaces``, with their own keys (Debian's openssh-server 9.2)."""

from __future__ import annotations

import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from namespaces import Hosts
from waiting import wait_until

SSHD = "/usr/sbin/sshd"
PRIVATE = Path("/run")  #: folder that sshd needs for the separation of privileges, private to each host
_SERVER = """
HostKey {folder}/key
AuthorizedKeysFile {folder}/key.pub
PidFile none
UsePAM no
StrictModes no
PermitRootLogin prohibit-password
"""
_CLIENT = """
IdentityFile {folder}/key
StrictHostKeyChecking no
UserKnownHostsFile /dev/null
LogLevel ERROR
"""


def lacking() -> str:
    """Return the name of a missing program, or an empty text."""
    missing = [name for name in (SSHD, "ssh-keygen", "pdsh") if shutil.which(name) is None]
    return f"not installed: {', '.join(missing)}" if missing else ""


@contextmanager
def sshd(hosts: Hosts, folder: Path) -> Iterator[dict[str, str]]:
    """Let pdsh reach every host; yield the environment variables that pdsh needs."""
    folder.mkdir()
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / "key")], check=True)
    (folder / "server").write_text(_SERVER.format(folder=folder))
    (folder / "client").write_text(_CLIENT.format(folder=folder))
    started = []
    try:
        for host in hosts.hosts.values():
            host.run("mkdir", "-p", str(PRIVATE / "sshd"))
            started.append(host.start(SSHD, "-D", "-e", "-f", str(folder / "server")))
            wait_until(lambda host=host: _answers(host.address))  # type: ignore[misc]
        yield {"PDSH_RCMD_TYPE": "ssh", "PDSH_SSH_ARGS_APPEND": f"-F {folder / 'client'}"}
    finally:
        for server in started:
            server.terminate()
            server.wait(30)


def _answers(address: str) -> bool:
    try:
        socket.create_connection((address, 22), 1).close()
    except OSError:
        return False
    return True
