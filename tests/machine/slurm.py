"""A Slurm cluster for tests, whose nodes are hosts in namespaces (Slurm 22.05, munge 0.5)."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import time
from typing import Any

from namespaces import Hosts
from namespaces import lacking as lacking_hosts
from ports import free_port

_PROGRAMS = ("slurmctld", "slurmd", "munged", "srun", "sinfo")


def lacking() -> str:
    """Return the reason why no cluster can be started here, or an empty text."""
    missing = [name for name in _PROGRAMS if _found(name) is None]
    return f"not installed: {', '.join(missing)}" if missing else lacking_hosts()


def _found(name: str) -> str | None:
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


class Slurm:
    """Controller on this machine, and a ``slurmd`` on each host; all files are in its folder."""

    def __init__(self, hosts: Hosts) -> None:
        self.hosts = hosts
        self.folder = hosts.folder / "slurm"
        self.environ = {"SLURM_CONF": str(self.folder / "slurm.conf")}
        self._servers: dict[str, subprocess.Popen[bytes]] = {}
        (self.folder / "state").mkdir(parents=True)
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o600)
        self._configure()
        try:
            self._serve(
                "munged",
                "--foreground",
                "--force",
                f"--socket={self.folder}/munge.socket",
                f"--key-file={key}",
                f"--log-file={self.folder}/munged.log",
                f"--pid-file={self.folder}/munged.pid",
                f"--seed-file={self.folder}/munged.seed",
            )
            self._wait(lambda: (self.folder / "munge.socket").exists(), "munged did not start")
            self._serve("slurmctld", "-D", "-i")
            for name in hosts.hosts:
                self.join(name)
            self._wait(self._idle, "the nodes did not come up")
        except BaseException:
            self.close()
            raise

    def _configure(self) -> None:
        folder, names = self.folder, list(self.hosts.hosts)
        lines = [
            "ClusterName=test",
            f"SlurmctldHost={socket.gethostname()}({self.hosts.address})",
            f"SlurmctldPort={free_port()}",
            "SlurmUser=root",
            "SlurmdUser=root",
            "AuthType=auth/munge",
            f"AuthInfo=socket={folder}/munge.socket",
            f"StateSaveLocation={folder}/state",
            f"SlurmdSpoolDir={folder}/spool-%n",
            f"SlurmctldPidFile={folder}/slurmctld.pid",
            f"SlurmdPidFile={folder}/slurmd-%n.pid",
            f"SlurmctldLogFile={folder}/slurmctld.log",
            f"SlurmdLogFile={folder}/slurmd-%n.log",
            "ProctrackType=proctrack/linuxproc",
            "TaskPlugin=task/none",
            "SelectType=select/cons_tres",
            "SelectTypeParameters=CR_Core",
            "ReturnToService=2",
            "SlurmdTimeout=0",  # the agent, not Slurm, has to find a host that is cut off
            "KillWait=2",
            "JobAcctGatherType=jobacct_gather/none",
            f"PartitionName=p Nodes=n[1-{len(names)}] Default=YES MaxTime=INFINITE State=UP",
        ]
        lines += [
            f"NodeName={host.name} NodeAddr={host.address} CPUs={os.cpu_count()} RealMemory=1000"
            for host in self.hosts.hosts.values()
        ]
        (folder / "slurm.conf").write_text("\n".join(lines) + "\n")

    def _serve(self, program: str, *options: str, host: str = "") -> None:
        words = [_found(program) or program, *options]
        command = self.hosts.hosts[host].command(*words) if host else words
        with (self.folder / f"{program}{host and '-' + host}.out").open("ab") as out:
            self._servers[f"{program} {host}"] = subprocess.Popen(
                command,
                env={**os.environ, **self.environ},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )

    def join(self, name: str) -> None:
        """Start the node's ``slurmd``, for the first time or after the host was switched on again."""
        (self.folder / f"spool-{name}").mkdir(exist_ok=True)
        self._serve("slurmd", "-D", "-N", name, host=name)

    def _idle(self) -> bool:
        idle = self.tell("sinfo", "-h", "-t", "idle", "-o", "%D").strip()
        return idle == str(len(self.hosts.hosts))

    def _wait(self, happens: Any, problem: str) -> None:
        until = time.monotonic() + 60
        while not happens():
            ended = [name for name, server in self._servers.items() if server.poll() is not None]
            if ended or time.monotonic() > until:
                logs = [file.read_text()[-800:] for file in sorted(self.folder.glob("*.out"))]
                raise RuntimeError("\n".join([f"{problem}; ended: {ended}", *logs]))
            time.sleep(0.1)

    def command(self, *words: str) -> list[str]:
        """Return the command line that runs ``srun`` with these options from this machine."""
        return ["srun", *words]

    def tell(self, *words: str) -> str:
        """Run one of Slurm's commands, and return its output."""
        environ = {**os.environ, **self.environ}
        return subprocess.run(words, env=environ, capture_output=True, text=True, check=False).stdout

    def cancel(self) -> None:
        """Cancel all jobs at once."""
        jobs = self.tell("squeue", "-h", "-o", "%i").split()
        if jobs:
            self.tell("scancel", "-s", "KILL", *jobs)

    def close(self) -> None:
        """Stop the servers of Slurm; the hosts stay."""
        for server in reversed(self._servers.values()):
            with contextlib.suppress(ProcessLookupError):
                server.terminate()
        for server in self._servers.values():
            try:
                server.wait(5)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()

    def __enter__(self) -> Slurm:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
