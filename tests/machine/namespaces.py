"""Hosts on one machine: namespaces with their own hostname, address, processes and hosts file.

A bridge connects all of them; servers outside are reachable at the bridge's address. This needs root, as
``unshare`` and ``ip`` do (util-linux 2.38, iproute2 6.1). The machine itself is unchanged except for links
with one name prefix, which `Hosts.close` removes.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_PROGRAMS = ("ip", "unshare", "nsenter", "mount", "bash")
_SUBNETS = range(64, 256)
# As process 1 of its host, it adopts orphans; bash reaps those that end.
_INIT = """
set -e
hostname "$1"
mount --bind "$2" /etc/hosts
for folder in "${@:4}"; do mount -t tmpfs tmpfs "$folder"; done
touch "$3"
while :; do sleep 3600 & wait $!; done
"""


def lacking() -> str:
    """Return the reason why no host can be made here, or an empty text."""
    if not hasattr(os, "geteuid") or os.geteuid() != 0:
        return "namespaces need root"
    missing = [name for name in _PROGRAMS if shutil.which(name) is None]
    if missing:
        return f"not installed: {', '.join(missing)}"
    tried = ["unshare", "--net", "--uts", "--mount", "--pid", "--fork", "--mount-proc", "true"]
    done = subprocess.run(tried, capture_output=True, text=True, check=False)
    if done.returncode:
        return f"namespaces are not allowed here: {done.stderr.strip()}"
    name = f"swtry{os.getpid()}"  # its own name: two test processes that try at once would refuse each other
    bridge = subprocess.run(["ip", "link", "add", name, "type", "bridge"], capture_output=True, check=False)
    subprocess.run(["ip", "link", "del", name], capture_output=True, check=False)
    return "" if bridge.returncode == 0 else "bridges are not allowed here"


class Host:
    """A host. Commands run in it as on a separate machine, with the files of this machine."""

    def __init__(self, name: str, address: str, link: str, pid: int) -> None:
        self.name = name
        self.address = address
        self.pid = pid  #: id of the host's process 1 on this machine
        self.alive = True
        self._link = link

    def command(self, *words: str) -> list[str]:
        """Return the command line that runs `words` on the host."""
        return ["nsenter", "--target", str(self.pid), "--net", "--uts", "--mount", "--pid", "--", *words]

    def start(self, *words: str, **options: Any) -> subprocess.Popen[Any]:
        """Start a command on the host."""
        return subprocess.Popen(self.command(*words), stdin=subprocess.DEVNULL, **options)

    def run(self, *words: str, timeout: float = 60) -> str:
        """Run a command on the host to its end, and return its output."""
        return subprocess.run(
            self.command(*words), check=True, capture_output=True, text=True, timeout=timeout
        ).stdout

    def signal(self, process: int, number: signal.Signals) -> None:
        """Send a signal to a process by its id on the host."""
        subprocess.run(self.command("kill", f"-{number.value}", str(process)), check=False)

    def link(self, state: str) -> None:
        """Set the host's link to the other hosts "down" or "up"."""
        _ip("link", "set", self._link, state)

    def processes(self) -> list[int]:
        """Return the ids on this machine of the host's processes, except process 1."""
        mine = _network_of(Path(f"/proc/{self.pid}"))
        entries = [entry for entry in Path("/proc").iterdir() if entry.name.isdigit()]
        found = [int(entry.name) for entry in entries if mine and _network_of(entry) == mine]
        return [pid for pid in found if pid != self.pid]

    def power_off(self) -> None:
        """Cut the host off without a message to the others, and kill all its processes."""
        if self.alive:
            self.alive = False
            self.link("down")
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)


class Hosts:
    """Hosts n1, n2 and so on; each host has its own version of the folders in `private`."""

    def __init__(self, count: int, folder: Path, *, private: Sequence[Path] = ()) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.hosts: dict[str, Host] = {}
        self._private = [str(item) for item in private]
        self._inits: dict[str, subprocess.Popen[bytes]] = {}
        self._number, self._bridge = _new_bridge()
        self.address = f"10.98.{self._number}.1"  #: address of this machine for the hosts
        try:
            lines = ["127.0.0.1 localhost", f"{self.address} outside"]
            lines += [f"{self._address(index)} n{index}" for index in range(1, count + 1)]
            (folder / "hosts").write_text("\n".join(lines) + "\n")
            for index in range(1, count + 1):
                self.add(f"n{index}")
        except BaseException:
            self.close()
            raise

    def _address(self, index: int) -> str:
        return f"10.98.{self._number}.{10 + index}"

    def add(self, name: str) -> Host:
        """Switch on a host, for the first time or after it was powered off."""
        index = int(name[1:])
        link, up = f"sw{self._number}x{index}", self.folder / f"{name}.up"
        up.unlink(missing_ok=True)
        self._end(name)
        separate = ["unshare", "--net", "--uts", "--mount", "--propagation", "private", "--pid", "--fork"]
        command = [*separate, "--kill-child", "--mount-proc", "bash", "-c", _INIT, "init", name]
        with (self.folder / f"{name}.log").open("ab") as log:
            self._inits[name] = init = subprocess.Popen(
                [*command, str(self.folder / "hosts"), str(up), *self._private],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        _wait_for(up.exists, lambda: init.poll() is not None, (self.folder / f"{name}.log").read_text)
        pid = int(Path(f"/proc/{init.pid}/task/{init.pid}/children").read_text().split()[0])
        _ip("link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", str(pid))
        _ip("link", "set", link, "master", self._bridge, "up")
        host = self.hosts[name] = Host(name, self._address(index), link, pid)
        host.run("ip", "addr", "add", f"{host.address}/24", "dev", "eth0")
        host.run("ip", "link", "set", "lo", "up")
        host.run("ip", "link", "set", "eth0", "up")
        host.run("ip", "route", "add", "default", "via", self.address)
        return host

    def _end(self, name: str) -> None:
        host, init = self.hosts.pop(name, None), self._inits.pop(name, None)
        if host is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(host.pid, signal.SIGKILL)
        if init is not None:
            init.kill()
            init.wait(30)
        # The kernel removes the link some time after its other end's namespace.
        subprocess.run(
            ["ip", "link", "del", f"sw{self._number}x{name[1:]}"], capture_output=True, check=False
        )

    def close(self) -> None:
        """Stop all hosts and their processes."""
        for name in list(self._inits):
            self._end(name)
        _try_ip("link", "del", self._bridge)

    def __enter__(self) -> Hosts:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


def _try_ip(*words: str) -> bool:
    return subprocess.run(["ip", *words], capture_output=True, check=False).returncode == 0


def _network_of(process: Path) -> str:
    try:
        return str((process / "ns" / "net").readlink())
    except OSError:
        return ""


def _new_bridge() -> tuple[int, str]:
    """Create a bridge with an unused subnet; the kernel refuses a name that exists."""
    for number in _SUBNETS:
        name = f"swbr{number}"
        if _try_ip("link", "add", name, "type", "bridge"):
            _ip("addr", "add", f"10.98.{number}.1/24", "dev", name)
            _ip("link", "set", name, "up")
            return number, name
    raise RuntimeError("no subnet is free")


def _wait_for(happens: Any, failed: Any, why: Any, seconds: float = 30.0) -> None:
    until = time.monotonic() + seconds
    while not happens():
        if failed() or time.monotonic() > until:
            raise RuntimeError(f"a host did not start: {why()}")
        time.sleep(0.01)


def environment(settings: Mapping[str, str]) -> dict[str, str]:
    """Return this process's environment with `settings`, without variables of Stallwatch or a scheduler."""
    foreign = ("STALLWATCH_", "SLURM_", "TORCHELASTIC_")
    own = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    return {**own, **settings}
