"""Inject faults into real training runs on several hosts and check the notifications about the hangs.

    python bench/cluster_lab.py --hangs 200 --resume hangs.jsonl

The hosts are namespaces of this machine (``tests/machine/namespaces.py``), and the ranks communicate with
gloo. On each host, or for each rank, ``stallwatch run`` watches ``torchrun --nnodes N`` or the processes of
``srun -N N``. During each start of the training, several faults are injected one after another. Every fault
except the last ends before the next fault begins. Each line of the JSON file describes one hang, including
all messages about it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "tests" / "machine")]

import msgspec  # noqa: E402
from cluster_messages import Receiver, opens  # noqa: E402
from namespaces import Hosts, environment, lacking  # noqa: E402
from processes import STALLWATCH  # noqa: E402
from slurm import Slurm  # noqa: E402
from slurm import lacking as lacking_slurm  # noqa: E402

from stallwatch_exporter.incident import Incident  # noqa: E402
from stallwatch_exporter.runs.runfolder import RUN_INCIDENTS  # noqa: E402
from stallwatch_exporter.watching.incidents import read_incidents  # noqa: E402

TRAINING = HERE / "cluster_programs" / "training.py"
HEALED = ("sleep", "stop", "loader", "link")  #: faults that end, after which the training continues
LAST = ("skip", "other", "kill", "host")  #: faults that end the training
LAUNCHERS = ("torchrun", "srun", "srun-ranks")
LAYOUTS = ("dp", "tp-pp")
FLOOR = 5.0  #: smallest possible threshold in seconds at the pace of this training
LEARNT = 60  #: steps until the agent has learned the pace
START_SECONDS = 240.0
NOTICED_SECONDS = 60.0  #: seconds after which a hang without a notification counts as missed
LONGER_SECONDS = 40.0  #: seconds added to the limit for each earlier hang, because hangs raise the threshold


@dataclass
class Hang:
    """The outcome of one hang, which is one line in the file that ``--resume`` names."""

    hang: int
    seed: int
    start: int
    kind: str
    layout: str
    launcher: str
    hosts: int
    world: int
    rank: int
    host: str
    began: float = 0.0
    messages: list[dict[str, Any]] = field(default_factory=list)
    incidents: list[dict[str, Any]] = field(default_factory=list)  #: facts, such as the blamed ranks
    openings: int = 0
    seconds: float | None = None  #: seconds until the first message
    allowed: float | None = None  #: the run's threshold, which is part of `seconds`
    ranks: list[int] = field(default_factory=list)  #: ranks that the notifications blame
    named: bool = False  #: True if exactly the rank at fault and its host are named
    wrong: bool = False  #: True if another rank or host is blamed
    confidence: float = 0.0
    broken: str = ""  #: the reason why the trial does not count


@dataclass(frozen=True)
class Start:
    """One start of a training run, and the faults that are injected into the run."""

    number: int
    launcher: str
    layout: str
    private: bool
    kinds: tuple[str, ...]
    ranks: tuple[int, ...]


def planned(
    hangs: int, seed: int, hosts: int, launchers: Sequence[str], only: Sequence[str], each: int
) -> list[Start]:
    """Plan starts with `hangs` hangs in total, at most `each` for each start.

    `seed` determines all random choices.
    """
    found: list[Start] = []
    count = 0
    while count < hangs:
        number = len(found)
        draw = random.Random(f"{seed}/{number}")
        layout = LAYOUTS[number % 2] if hosts % 4 == 0 else "dp"
        last = [kind for kind in LAST if not only or kind in only]
        healed = [kind for kind in HEALED if not only or kind in only]
        launcher = launchers[number % len(launchers)]
        kinds = draw.sample(healed, min(each - 1, len(healed))) + draw.sample(last, min(1, len(last)))
        if each == 1:
            kinds = [draw.choice(healed + last)]
        # torchrun drops a host that is disconnected for 15 s, so "link" must be the last fault.
        if launcher == "srun" and "link" in kinds[:-1]:
            kinds = [kind for kind in kinds if kind in HEALED and kind != "link"] + ["link"]
        kinds = kinds[: hangs - count]
        ranks = tuple(draw.randrange(hosts) for _ in kinds)
        found.append(Start(number, launcher, layout, draw.random() < 0.3, tuple(kinds), ranks))
        count += len(kinds)
    return found


class Cluster:
    """One start of a training run on several hosts, with agents and a chat for the agents' messages."""

    def __init__(self, start: Start, seed: int, hosts: int, first: int, settle: float) -> None:
        self.start = start
        self._seed = seed
        self._first = first
        self._settle = settle
        self.folder = Path(tempfile.mkdtemp(prefix="stallwatch-lab-"))
        self.control = self.folder / "control"
        self.control.mkdir()
        self.homes = [self.folder / "home"]
        self._closing = contextlib.ExitStack()
        self.hosts = self._closing.enter_context(Hosts(hosts, self.folder / "hosts"))
        self.receiver = self._closing.enter_context(Receiver(self.hosts.address))
        self._processes: list[subprocess.Popen[Any]] = []

    def close(self, *, keep: bool = False) -> None:
        """Stop all processes and remove the folder unless `keep` is set."""
        self._closing.close()
        for process in self._processes:
            process.kill()
            process.wait()
        if keep:
            print(f"kept: {self.folder}", file=sys.stderr)
        else:
            shutil.rmtree(self.folder, ignore_errors=True)

    def launch(self) -> None:
        """Start the training and an agent on each host."""
        names = list(self.hosts.hosts)
        environ = environment(
            {
                "STALLWATCH_HOME": str(self.homes[0]),
                "STALLWATCH_ALERTS_URLS": self.receiver.url,
                "STALLWATCH_STALL_FLOOR_SECONDS": str(FLOOR),
                "STALLWATCH_EXPORTER_LINGER_SECONDS": "0",
                "GLOO_SOCKET_IFNAME": "eth0",
                "MASTER_ADDR": names[0],
                "MASTER_PORT": "29400",
                "OMP_NUM_THREADS": "1",
                "PYTHONUNBUFFERED": "1",
                "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
                "STALLWATCH_CACHE": os.environ.get("STALLWATCH_CACHE", str(self.folder / "cache")),
            }
        )
        watched = [*STALLWATCH, "run", "--port", "0", "--name", "lab", "--"]
        if self.start.private:  # each host gets its own state folder, and all hosts share a secret
            environ["STALLWATCH_JOIN_SECRET"] = f"s3cret-{self._seed}-{self.start.number}"
            self.homes = [self.folder / f"home-{name}" for name in names]
            script = f'export STALLWATCH_HOME={self.folder}/home-$(hostname); exec "$@"'
            watched = ["sh", "-c", script, "sh", *watched]
        training = [str(TRAINING), str(self.control), self.start.layout]
        nodes = ["--nnodes", str(len(names)), "--nproc-per-node", "1"]
        torchrun = [sys.executable, "-m", "torch.distributed.run", *nodes]
        nice = ["nice", "-n", "10", *watched]
        if self.start.launcher == "torchrun":
            for index, name in enumerate(names):
                master = ["--master-addr", names[0], "--master-port", "29400", "--node-rank", str(index)]
                command = [*nice, *torchrun, *master, *training]
                self._spawn(self.hosts.hosts[name].command(*command), environ, name)
            return
        rendezvous = ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"{names[0]}:29400", "--rdzv-id", "lab"]
        command = [*nice, *torchrun, *rendezvous, *training]
        slurm = self._closing.enter_context(Slurm(self.hosts))
        if self.start.launcher == "srun-ranks":
            command = [*nice, sys.executable, *training]
        srun = slurm.command(f"-N{len(names)}", f"-n{len(names)}", "--kill-on-bad-exit=0", *command)
        self._spawn(srun, {**environ, **slurm.environ}, "srun")

    def _spawn(self, command: list[str], environ: dict[str, str], name: str) -> None:
        with (self.folder / f"{name}.out").open("wb") as out:
            self._processes.append(
                subprocess.Popen(
                    command,
                    cwd=self.folder,
                    env=environ,
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            )

    @property
    def step(self) -> int:
        """The step that the training has reached."""
        try:
            return int((self.control / "step").read_text())
        except (OSError, ValueError):
            return 0

    def reach(self, step: int, seconds: float) -> bool:
        """Wait at most `seconds` seconds for the training to reach a step. Return whether this succeeded."""
        until = time.monotonic() + seconds
        while self.step < step and time.monotonic() < until:
            time.sleep(0.2)
        return self.step >= step

    def host_of(self, rank: int) -> str:
        """Read the name of a rank's host from the environment of the rank's process."""
        pid = (self.control / f"pid-{rank}").read_text()
        for name, host in self.hosts.hosts.items():
            with contextlib.suppress(subprocess.CalledProcessError):
                words = host.run("cat", f"/proc/{pid}/cmdline").split("\0")
                environ = host.run("cat", f"/proc/{pid}/environ").split("\0")
                numbers = (f"RANK={rank}", f"SLURM_PROCID={rank}")
                if str(TRAINING) in words and any(number in environ for number in numbers):
                    return name
        return ""

    def hangs(self) -> Iterator[Hang]:
        """Inject the faults one after another and yield the outcome of each fault."""
        self.launch()
        started = self.reach(LEARNT, START_SECONDS)
        for index, (kind, rank) in enumerate(zip(self.start.kinds, self.start.ranks, strict=True)):
            hang = Hang(
                hang=self._first + index,
                seed=self._seed,
                start=self.start.number,
                kind=kind,
                layout=self.start.layout,
                launcher=self.start.launcher,
                hosts=len(self.hosts.hosts),
                world=len(self.hosts.hosts),
                rank=rank,
                host="",
            )
            if started:
                self._break(hang, index + 1)
                started = index + 1 == len(self.start.kinds) or self.reach(self.step + LEARNT, 90)
            else:
                hang.broken = f"the training did not continue from step {self.step}"
            yield hang

    def _break(self, hang: Hang, number: int) -> None:
        hang.host = self.host_of(hang.rank)
        if not hang.host:
            hang.broken = "the host of the rank is unknown"
            return
        host, seen = self.hosts.hosts[hang.host], len(self.receiver.messages)
        if hang.kind in ("link", "host"):
            hang.began = time.time()
            host.link("down") if hang.kind == "link" else host.power_off()
        else:
            fault = {"number": number, "kind": hang.kind, "rank": hang.rank}
            (self.control / "fault.new").write_text(json.dumps(fault))
            (self.control / "fault.new").replace(self.control / "fault.json")
            began = self.control / f"began-{number}"
            until = time.monotonic() + 30
            while not began.exists() and time.monotonic() < until:
                time.sleep(0.05)
            if not began.exists():
                hang.broken = "the fault did not begin"
                return
            hang.began = float(began.read_text())
        self._wait_for_messages(seen, NOTICED_SECONDS + LONGER_SECONDS * (number - 1))
        if hang.kind == "link":
            host.link("up")
            time.sleep(self._settle)
        if hang.kind == "stop":
            host.signal(int((self.control / f"pid-{hang.rank}").read_text()), signal.SIGCONT)
        (self.control / f"healed-{number}").touch()
        self._judge(hang, self.receiver.messages[seen:])

    def _wait_for_messages(self, seen: int, most: float) -> None:
        """Wait until the messages have stopped, or until `most` seconds have passed without any message."""
        began = time.time()
        while True:
            newest = [at for at, _ in self.receiver.messages[seen:]]
            until = newest[-1] + self._settle if newest else began + most
            if time.time() > until:
                return
            time.sleep(0.2)

    def _judge(self, hang: Hang, messages: Sequence[tuple[float, dict[str, Any]]]) -> None:
        hang.messages = [
            {"seconds": round(at - hang.began, 2), **{name: body.get(name) for name in _KEPT}}
            for at, body in messages
        ]
        opening = [at for at, body in messages if opens(body)]
        hang.openings = len(opening)
        hang.seconds = round(opening[0] - hang.began, 2) if opening else None
        sent = {
            name for _, body in messages for name in str(body.get("incidents") or body.get("id")).split(",")
        }
        for home in self.homes:
            for folder in sorted(home.glob("runs/*")):
                for incident in _kept(folder):
                    if incident.updated_at >= hang.began and incident.opened_at >= hang.began - 1:
                        hang.incidents.append(
                            {"folder": folder.name, "sent": incident.id in sent, **_facts(incident)}
                        )
        notified = [item for item in hang.incidents if item["sent"]] or hang.incidents
        best = max(
            notified,
            key=lambda item: (len(item["aliases"]), item["confidence"], item["rank"] is not None),
            default=None,
        )
        if best is not None:
            hang.confidence, hang.allowed = best["confidence"], best["threshold"]
            hang.ranks = best["odd"] or ([best["rank"]] if best["rank"] is not None else [])
            hang.named = hang.ranks == [hang.rank] and best["host"] == hang.host
            hang.wrong = bool(hang.ranks) and hang.rank not in hang.ranks


def _kept(folder: Path) -> list[Incident]:
    """Return the merged incidents of the run. If there are none, return the incidents of this agent."""
    found: dict[str, Incident] = {}
    with contextlib.suppress(FileNotFoundError), (folder / RUN_INCIDENTS).open("rb") as lines:
        for line in lines:
            incident = msgspec.json.decode(line, type=Incident)
            found[incident.id] = incident
    return list(found.values()) or read_incidents(folder)


def _facts(incident: Incident) -> dict[str, Any]:
    """Return the fields of an incident that show its blamed ranks and hosts."""
    stacks = incident.stacks
    return {
        "id": incident.id,
        "kind": incident.kind,
        "host": incident.host,
        "rank": incident.rank,
        "threshold": incident.threshold_seconds,
        "odd": stacks.odd if stacks else [],
        "why": stacks.why if stacks else "",
        "candidates": stacks.candidates if stacks else [],
        "confidence": stacks.confidence if stacks else 0.0,
        "hosts": incident.hosts,
        "aliases": incident.aliases,
    }


_KEPT = ("run", "rule", "severity", "status", "outcome", "title", "text", "id", "incidents", "statuses")


def summary(hangs: Sequence[Hang]) -> str:
    """Return a table with a row for each kind of fault and a row for all kinds."""
    rows = [
        "| kind | hangs | detected | rank and host named | others named | opening messages"
        " | one opening message | seconds (median, maximum) |",
        "|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    counted = [hang for hang in hangs if not hang.broken]
    for kind in [*dict.fromkeys(item.kind for item in counted), "all"]:
        of = [item for item in counted if kind in (item.kind, "all")]
        seconds = sorted(item.seconds for item in of if item.seconds is not None)
        shown = f"{seconds[len(seconds) // 2]:.1f}, {seconds[-1]:.1f}" if seconds else "–"
        rows.append(
            f"| {kind} | {len(of)} | {sum(item.openings > 0 for item in of)}"
            f" | {sum(item.named for item in of)}"
            f" | {sum(item.wrong for item in of)} | {sum(item.openings for item in of)}"
            f" | {sum(item.openings == 1 for item in of)} | {shown} |"
        )
    broken = Counter(hang.broken for hang in hangs if hang.broken)
    return "\n".join([*rows, *(f"not evaluated: {why} ({count})" for why, count in broken.items())])


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the remaining starts and print a summary of all hangs."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--hangs", type=int, default=200)
    parser.add_argument("--hosts", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--launcher", action="append", default=[], choices=LAUNCHERS)
    parser.add_argument("--only", action="append", default=[], choices=HEALED + LAST)
    parser.add_argument("--each", type=int, default=4, help="maximum number of hangs per start")
    parser.add_argument(
        "--settle", type=float, default=6.0, help="seconds without a message after which a hang is evaluated"
    )
    parser.add_argument("--keep", action="store_true", help="keep the folders of all starts")
    parser.add_argument(
        "--resume", type=Path, metavar="FILE.jsonl", help="skip the hangs in this file, and add new results"
    )
    given = parser.parse_args(arguments)
    launchers = given.launcher or list(LAUNCHERS)
    why = lacking() or (lacking_slurm() if set(launchers) != {"torchrun"} else "")
    if why:
        print(why, file=sys.stderr)
        return 2
    results: list[Hang] = []
    if given.resume and given.resume.exists():
        results = [Hang(**json.loads(line)) for line in given.resume.read_text().splitlines()]
    done = {result.hang for result in results if result.seed == given.seed and not result.broken}
    first = 0
    try:
        for start in planned(given.hangs, given.seed, given.hosts, launchers, given.only, given.each):
            if not done >= set(range(first, first + len(start.kinds))):
                results = [
                    result for result in results if (result.seed, result.start) != (given.seed, start.number)
                ]
                results += one_start(start, given, first)
                if given.resume:
                    lines = [json.dumps(asdict(result), ensure_ascii=False) + "\n" for result in results]
                    given.resume.write_text("".join(lines))
            first += len(start.kinds)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
    print(summary(results))
    return 0


def one_start(start: Start, given: argparse.Namespace, first: int) -> list[Hang]:
    """Run one start to its end and return its hangs."""
    cluster = Cluster(start, given.seed, given.hosts, first, given.settle)
    hangs: list[Hang] = []
    try:
        for hang in cluster.hangs():
            hangs.append(hang)
            print(
                f"{hang.hang}: {hang.launcher} {hang.layout}, {hang.kind} of rank {hang.rank} on {hang.host}:"
                f" opening messages: {hang.openings}, after {hang.seconds} s, named {hang.ranks}"
                f" {'right' if hang.named else 'wrong' if hang.wrong else 'no'} {hang.broken}",
                flush=True,
            )
    finally:
        cluster.close(keep=given.keep)
    return hangs


if __name__ == "__main__":
    sys.exit(main())
