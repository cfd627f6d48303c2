"""Hosts in namespaces, and Slurm over them: the basis of the lab with real hangs."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import namespaces
import pytest
import slurm
from namespaces import Hosts
from processes import runs
from slurm import Slurm
from waiting import wait_until

pytestmark = pytest.mark.skipif(bool(namespaces.lacking()), reason=namespaces.lacking())


def reaches(hosts: Hosts, one: str, other: str) -> bool:
    """Return True if a packet from one host reaches the other, and the answer returns."""
    script = "import socket,sys; socket.create_connection((sys.argv[1], 7), 2)"
    command = hosts.hosts[one].command("python3", "-c", script, other)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return "ConnectionRefusedError" in done.stderr  # refused by the host itself, which has no listener there


def links() -> list[str]:
    return sorted(path.name for path in Path("/sys/class/net").glob("sw*"))


def test_hosts_have_separate_names_addresses_and_processes(tmp_path: Path) -> None:
    names = Path("/etc/hosts").read_bytes()
    with Hosts(2, tmp_path) as hosts:
        assert [host.run("hostname").strip() for host in hosts.hosts.values()] == ["n1", "n2"]
        assert hosts.hosts["n1"].run("cat", "/proc/1/cmdline") != Path("/proc/1/cmdline").read_text()
        assert reaches(hosts, "n1", "n2") and reaches(hosts, "n2", "n1")
        assert reaches(hosts, "n1", "outside")
        assert Path("/etc/hosts").read_bytes() == names


def test_disconnected_host_continues_and_reconnects(tmp_path: Path) -> None:
    with Hosts(2, tmp_path) as hosts:
        started = hosts.hosts["n2"].start("sleep", "600")
        hosts.hosts["n2"].link("down")
        assert not reaches(hosts, "n1", "n2")
        assert started.poll() is None
        hosts.hosts["n2"].link("up")
        wait_until(lambda: reaches(hosts, "n1", "n2"))
        started.kill()
        started.wait()


def test_powering_off_a_host_kills_its_processes_and_it_can_restart(tmp_path: Path) -> None:
    with Hosts(2, tmp_path) as hosts:
        host = hosts.hosts["n2"]
        started = host.start("sleep", "600")
        wait_until(host.processes)
        inside = host.processes()
        host.power_off()
        started.wait(60)
        wait_until(lambda: not any(runs(pid) for pid in inside))
        assert not reaches(hosts, "n1", "n2")
        hosts.add("n2")
        wait_until(lambda: reaches(hosts, "n1", "n2"))


def test_hosts_leave_no_processes_behind(tmp_path: Path) -> None:
    before = links()
    hosts = Hosts(2, tmp_path)
    started = hosts.hosts["n1"].start("sleep", "600")
    assert links() != before
    hosts.close()
    started.wait(60)
    wait_until(lambda: links() == before)


@pytest.mark.skipif(bool(slurm.lacking()), reason=slurm.lacking())
def test_slurm_starts_a_step_on_every_host(tmp_path: Path) -> None:
    with Hosts(3, tmp_path) as hosts, Slurm(hosts) as cluster:
        said = subprocess.run(
            cluster.command("-N3", "sh", "-c", "echo $(hostname) $SLURM_NODEID $SLURM_STEP_NODELIST"),
            env={**os.environ, **cluster.environ},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    assert sorted(said.splitlines()) == [f"n{index + 1} {index} n[1-3]" for index in range(3)]
