"""Simulate the agents of many hosts. These agents report to real coordinators over HTTP.

A simulated agent consists of two parts of Stallwatch: a `Member`, which receives the observations of its host
from the model (``cluster_training.py``), and the clients that send reports to the coordinators. The
simulation includes clock errors, lost and late reports, agents that start late, coordinators that are killed,
and hosts that cannot connect to each other.
"""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import msgspec
import psutil
from cluster_training import Hang, spans

from stallwatch_alerts.store import IncidentStore
from stallwatch_exporter.cluster.identity import RunIdentity
from stallwatch_exporter.cluster.member import Member, State
from stallwatch_exporter.cluster.peer import Peer, Signed
from stallwatch_exporter.cluster.secrets import Secret
from stallwatch_exporter.cluster.signing import Answer
from stallwatch_exporter.cluster.wire import AgentReport, Reply
from stallwatch_exporter.incident import Incident
from stallwatch_rules.judgements.conclusions import STANDSTILLS
from stallwatch_rules.stacks.quiet_periods import CRITICAL, SHORT, Ruling
from stallwatch_rules.stacks.records import StallStacks

SECRET = "s1mulated-runs"
THRESHOLD = 6.0  #: fixed threshold of the simulated run, in seconds
TICK = 0.1
LOST, LATE = 0.05, 0.05  #: shares of lost reports and of late reports
SKEW = 30.0  #: largest clock error of a host, in seconds
_ANSWER_SECONDS = 2.0


class Service:
    """One ``stallwatch coordinator`` process."""

    def __init__(self, folder: Path, url: str, port: int) -> None:
        self.home = folder
        self.port = port
        folder.mkdir(parents=True, exist_ok=True)
        environ = {name: value for name, value in os.environ.items() if not name.startswith("STALLWATCH_")}
        self._environ = {
            **environ,
            "STALLWATCH_HOME": str(folder),
            "STALLWATCH_CACHE": os.environ.get("STALLWATCH_CACHE", str(folder / "cache")),
            "STALLWATCH_ALERTS_URLS": url,
            "STALLWATCH_JOIN_SECRET": SECRET,
        }
        self._process: subprocess.Popen[bytes] | None = None
        self._used = 0.0  # processor seconds of the processes that were killed earlier
        self.start()

    def start(self) -> None:
        """Start the coordinator if it is not running, and wait until it accepts connections."""
        if self._process is not None and self._process.poll() is None:
            return
        command = [sys.executable, "-m", "stallwatch", "coordinator", "--host", "127.0.0.1"]
        with (self.home / "out").open("ab") as out:
            self._process = subprocess.Popen(
                [*command, "--port", str(self.port)],
                cwd=self.home,
                env=self._environ,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
        until = time.monotonic() + 90
        while time.monotonic() < until and self._process.poll() is None:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return
            except OSError:
                time.sleep(0.1)
        raise RuntimeError(f"the coordinator did not start: {(self.home / 'out').read_text()[-2000:]}")

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        """Send the signal to the coordinator and wait until the coordinator ends."""
        assert self._process is not None
        self._used = self.processor
        self._process.send_signal(number)
        self._process.wait()

    @property
    def processor(self) -> float:
        """The processor time that the coordinator has used, in seconds."""
        assert self._process is not None
        try:
            return self._used + sum(psutil.Process(self._process.pid).cpu_times()[:2])
        except psutil.NoSuchProcess:
            return self._used

    @property
    def memory(self) -> float:
        """The memory of the coordinator in MiB."""
        assert self._process is not None
        try:
            return float(psutil.Process(self._process.pid).memory_info().rss) / 2**20
        except psutil.NoSuchProcess:
            return 0.0

    def incidents(self, run: str) -> list[Incident]:
        """Return the incidents of a run that the coordinator stored."""
        store = IncidentStore.at_home(self.home)
        try:
            return store.list(run=run)
        finally:
            store.close()


class Carrier:
    """Sends one agent's reports, and tries the coordinators in order until one of them responds."""

    def __init__(
        self, key: str, agent: str, services: Sequence[Service], draw: random.Random, lost: float = 1.0
    ) -> None:
        self.cut: set[int] = set()  #: numbers of the coordinators that the agent cannot reach
        self.posts = 0
        self.slowest = 0.0  #: longest response time in seconds, without the simulated delay
        count = iter(range(1, 1 << 62))
        self._signed = Signed(key, agent, Secret(SECRET.encode()), lambda: time.time_ns() + next(count))
        self._draw = draw
        self._lost = lost
        searches = threading.Semaphore(1)
        self._peers = [
            Peer("127.0.0.1", [service.port], lambda _: None, time.monotonic, searches)
            for service in services
        ]

    def post(self, report: AgentReport) -> Reply | None:
        """Send a report and return the reply, or ``None`` if the report does not arrive."""
        self.posts += 1
        chance = self._draw.random()
        if chance < LOST * self._lost:
            return None
        if chance < (LOST + LATE) * self._lost:
            time.sleep(self._draw.uniform(0.5, 2.0))
        for index, peer in enumerate(self._peers):
            if index in self.cut:
                continue
            peer.look(self._signed)
            if not peer.wait(_ANSWER_SECONDS):
                continue
            began = time.monotonic()
            answer = peer.post([report], self._signed, _ANSWER_SECONDS)
            self.slowest = max(self.slowest, time.monotonic() - began)
            if isinstance(answer, Answer):
                return answer.of(report.agent)
        return None

    def close(self) -> None:
        """Cancel the unfinished requests."""
        for peer in self._peers:
            peer.close()
            peer.close_connection()


class Host:
    """A host of the run, with the observations, the reports, and the chat messages of its agent."""

    def __init__(self, run: Fleet, name: str, draw: random.Random) -> None:
        hang = run.hang
        self.name = name
        self.carrier = Carrier(run.key, f"{run.run}-{name}", run.services, draw, run.lost)
        self.starts = run.began + (draw.uniform(0.0, 4.0) if draw.random() < run.late else 0.0)
        self.gone = False
        self.alone: list[Incident] = []
        skew = draw.uniform(-SKEW, SKEW)
        ranks = hang.training.ranks_of(name)
        self._ranks, self._world = spans(ranks), hang.training.world
        self._silent = name in hang.truth.silent
        # Seconds from this host's last activity to the last activity of the run.
        self._last_sign = draw.uniform(0.0, 0.5)
        self._stacks = None if self._silent else hang.stacks(name, time.time() + skew)
        self._own = _own_ruling(self._stacks, run.floor)
        self._run = run
        self._step = max((state.step for state in hang.states.values()), default=0)
        self.incident: Incident | None = None
        self._skew = skew
        self.opened_at: float | None = None
        self.member = Member(
            RunIdentity(
                key=run.key, job="1", origin="flags", node=int(name[1:]), agents=len(hang.training.hosts)
            ),
            run.run,
            self.carrier,
            [self.alone.append],
            agent=f"{run.run}-{name}",
            host=name,
            host_id=f"{run.key}-{name}",
            wall=self.wall,
            clock=time.monotonic,
            start=False,
        )
        self.busy: Future[None] | None = None

    def wall(self) -> float:
        """Return the host's wall-clock time."""
        return time.time() + self._skew

    def see(self, now: float) -> None:
        """Update the agent with the state of the ranks and open or close an incident."""
        run = self._run
        if self._silent and now >= run.hangs_at:
            self.gone = True
            return
        hangs = run.hangs_at <= now < run.heals_at
        quiet = now - run.hangs_at + self._last_sign if hangs else 0.3
        looked = hangs and quiet >= THRESHOLD / 3
        self.member.update(
            State(
                ranks=self._ranks,
                world=self._world,
                step=self._step,
                quiet=quiet,
                threshold=THRESHOLD,
                ruling=self._own if looked else None,
                stacks=self._stacks if looked else None,
                stacks_at=now,
            )
        )
        ruling = self._own
        if ruling is not None and ruling.status != "stalled" and self.member.ruling is not None:
            ruling = self.member.ruling
        if looked and self.incident is None and ruling is not None and quiet >= ruling.limit:
            self.opened_at = now
            self._report("open", quiet, ruling)
        if not hangs and self.incident is not None and self.incident.status == "open":
            self._report("resolved", quiet, ruling)

    def _report(self, status: str, quiet: float, ruling: Ruling | None) -> None:
        before, wall = self.incident, self.wall()
        self.incident = Incident(
            id=f"{self._run.run}/stall/{_RULE}/1",
            run=self._run.run,
            kind="stall",
            rule=_RULE,
            severity="critical",
            status="open" if status == "open" else "resolved",
            episode=1,
            opened_at=before.opened_at if before is not None else wall,
            updated_at=wall,
            resolved_at=wall if status == "resolved" else None,
            resolution="recovered" if status == "resolved" else "",
            host=self.name,
            rank=ruling.rank if ruling is not None else None,
            step=self._step,
            stalled_seconds=quiet,
            threshold_seconds=THRESHOLD,
        )
        self.member(self.incident)


_RULE = sorted(STANDSTILLS)[0]


def _own_ruling(stacks: StallStacks | None, floor: float) -> Ruling | None:
    """Return the decision of a host that considers only its own ranks.

    The function is a simplified version of ``stacks/quiet_periods.py``.
    """
    if stacks is None:
        return None
    for group in stacks.groups:
        if group.condition in ("ended", "stopped"):
            return Ruling("stalled", THRESHOLD, group.condition, group.ranks[0], group.place)
    busy = [group for group in stacks.groups if group.kind != "collective"]
    if not busy:
        return Ruling("waiting", max(THRESHOLD, SHORT * floor), "others", None, stacks.groups[0].place)
    group = busy[0]
    if group.kind == "save":
        limit = max(THRESHOLD, CRITICAL * floor)
        return Ruling("waiting", limit, "save", group.ranks[0], group.place)
    reason = "data" if group.kind == "data" else "code"
    return Ruling("stalled", THRESHOLD, reason, group.ranks[0], group.place)


class Fleet:
    """All agents of one run, and the time when the run stalls."""

    def __init__(
        self,
        run: str,
        hang: Hang,
        services: Sequence[Service],
        draw: random.Random,
        *,
        lost: float = 1.0,
        late: float = 0.1,
    ) -> None:
        """Create the agents.

        `lost` is a factor for the shares of lost reports and late reports. `late` is the share of agents that
        start late.
        """
        self.run = run
        self.hang = hang
        self.services = services
        self.key = f"{draw.getrandbits(64):016x}"
        self.lost, self.late = lost, late
        # Stallwatch uses a longer threshold during saves. A lower floor keeps these trials shorter than a
        # few minutes.
        self.floor = THRESHOLD / CRITICAL if hang.truth.fault == "file-system" else THRESHOLD
        self.began = time.monotonic()
        self.hangs_at = self.began + 6.0 - THRESHOLD / 3
        self.heals_at = float("inf")
        #: Scheduled actions, as pairs of time and action.
        self.at: list[tuple[float, Callable[[], None]]] = []
        self.hosts = [Host(self, name, random.Random(draw.random())) for name in hang.training.hosts]

    @property
    def due_at(self) -> float | None:
        """Return the earliest time when an agent reached its threshold, or ``None`` if no agent did."""
        return min((host.opened_at for host in self.hosts if host.opened_at is not None), default=None)

    @property
    def posts(self) -> int:
        """Return the number of reports that all agents have posted."""
        return sum(host.carrier.posts for host in self.hosts)

    @property
    def alone(self) -> list[Incident]:
        """Return the incidents that agents sent to the chat themselves, without any coordinator."""
        return [incident for host in self.hosts for incident in host.alone]

    def go(self, until: Callable[[], bool], seconds: float, pool: ThreadPoolExecutor) -> bool:
        """Wait at most `seconds` seconds until `until` returns true. Return whether it returned true."""
        end = time.monotonic() + seconds
        while not (found := until()) and (now := time.monotonic()) < end:
            for at, action in list(self.at):
                if now >= at:
                    self.at.remove((at, action))
                    action()
            for host in self.hosts:
                if host.gone or now < host.starts:
                    continue
                host.see(now)
                host.member.notify_alone()
                if (host.busy is None or host.busy.done()) and host.member.due_in() <= TICK:
                    host.busy = pool.submit(host.member.round)
            time.sleep(max(0.0, TICK - (time.monotonic() - now)))
        return found

    def close(self) -> None:
        """Stop all agents and cancel their unfinished requests."""
        for host in self.hosts:
            host.gone = True
        for host in self.hosts:
            if host.busy is not None:
                host.busy.exception(30)
            host.carrier.close()


def merged(services: Sequence[Service], run: str) -> list[Incident]:
    """Return the incidents of a run from all coordinators.

    If several coordinators have the same incident, prefer the record with stacks. Incidents with stacks come
    first.
    """
    found: dict[str, Incident] = {}
    for service in services:
        for incident in service.incidents(run):
            before = found.get(incident.id)
            if before is None or (before.stacks is None and incident.stacks is not None):
                found[incident.id] = incident
    aliases = {alias for value in found.values() for alias in value.aliases}
    order = [msgspec.structs.replace(value) for value in found.values() if value.id not in aliases]
    return sorted(order, key=lambda item: item.stacks is None)
