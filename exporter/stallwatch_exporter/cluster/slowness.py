"""Compare the ranks' steps to find a host that slows down the other hosts, and manage the incident."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from itertools import repeat

import msgspec

from stallwatch_exporter.cluster.merging import qualified
from stallwatch_exporter.cluster.wire import BEAT_SECONDS, MOST_RANKS, AgentReport, Paces
from stallwatch_exporter.incident import Incident, Resolution
from stallwatch_exporter.watching.alarms import RESOLUTIONS
from stallwatch_exporter.watching.incidents import IncidentManager
from stallwatch_rules.endings import Ending
from stallwatch_rules.judgements.conclusions import STRAGGLER
from stallwatch_rules.judgements.slow_hosts import RankStep, SlowHost, SlowHosts
from stallwatch_rules.messages import Message, message

MOST_STEPS = 256  #: maximum number of steps of one rank in one report

# Minimum number of seconds between two reported steps. If steps are shorter, only the multiples of 2, 4, 8,
# or a higher power of two are reported.
_LEAST_SECONDS = 0.2
_DIGITS = 4  # Number of significant digits. Fewer digits would hide a difference of one percent.
_GATHER_SECONDS = 1.5 * BEAT_SECONDS  # seconds from the first report until all hosts have reported
_ANEW_STEPS = 64  # number of steps that a new coordinator compares before it reports that a host caught up
_MOST_POSTED = 64
RUN = "run"  #: used instead of an agent's name, because the incident belongs to the run


class UnacknowledgedSteps:
    """Store the steps of an agent's ranks until a coordinator acknowledges them. The class is thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._steps: dict[int, deque[tuple[int, RankStep]]] = {}  # steps by rank
        self._counts: dict[int, int] = {}  # number of recorded steps, by rank
        self._posted: dict[int, Mapping[int, int]] = {}  # `_counts` at each report, by report number

    def take(self, rank: int, step: int, own: RankStep) -> None:
        """Record a rank's step, unless it has already been recorded."""
        every = 1
        while every * own.whole < _LEAST_SECONDS and every < MOST_STEPS:
            every *= 2
        with self._lock:
            if step % every or (rank not in self._steps and len(self._steps) >= MOST_RANKS):
                return
            steps = self._steps.setdefault(rank, deque(maxlen=MOST_STEPS))
            if not steps or steps[-1][0] != step:
                steps.append((step, own))
                self._counts[rank] = self._counts.get(rank, 0) + 1

    def report(self, number: int) -> list[Paces]:
        """Return the unacknowledged steps for the report with this number."""
        with self._lock:
            self._posted[number] = dict(self._counts)
            if len(self._posted) > _MOST_POSTED:
                del self._posted[next(iter(self._posted))]
            return [self._paces(rank, steps) for rank, steps in self._steps.items() if steps]

    def acknowledged(self, number: int) -> None:
        """Remove the steps of the report with this number, and of all earlier reports."""
        with self._lock:
            for known in [posted for posted in self._posted if posted <= number]:
                for rank, count in self._posted.pop(known).items():
                    steps = self._steps[rank]
                    while steps and self._counts[rank] - len(steps) < count:
                        steps.popleft()

    def _paces(self, rank: int, steps: Iterable[tuple[int, RankStep]]) -> Paces:
        known = list(steps)
        counted = any(rank_step.tokens for _, rank_step in known)
        return Paces(
            rank,
            self._counts[rank] - len(known),
            [step for step, _ in known],
            [_rounded(rank_step.own) for _, rank_step in known],
            [_rounded(rank_step.whole) for _, rank_step in known],
            [round(rank_step.tokens) for _, rank_step in known] if counted else [],
        )


class Slowness:
    """Compare the steps of all ranks of a run to find a slow host, and open and close its incident.

    `change` receives each change of the incident. `cost` receives the lost fraction of the throughput.
    """

    def __init__(
        self,
        change: Callable[[Incident], None],
        clock: Callable[[], float],
        wall: Callable[[], float],
        cost: Callable[[float], None] = lambda _: None,
    ) -> None:
        self._change = change
        self._clock = clock
        self._wall = wall
        self._cost = cost
        self._watched = SlowHosts()
        self._attempt = 0
        self._first_at: float | None = None
        self._seen: dict[tuple[str, int], int] = {}  # number of processed steps, by agent and rank
        self._book: IncidentManager | None = None
        self._host = ""  # host that the incident is about

    def take(self, report: AgentReport, host: str, ledger: Iterable[Incident]) -> None:
        """Process the steps in a report. `ledger` contains the incidents that were reported to users."""
        if report.attempt > self._attempt:  # a new attempt has new ranks, which might run on other hosts
            self._attempt = report.attempt
            self._watched = SlowHosts()
            self._resolve("unknown")
        if report.attempt < self._attempt:
            return
        if report.ending is not None:
            self._watched.leave(host)  # an open incident is closed together with the run
            return
        now = self._clock()
        if self._first_at is None:
            self._first_at = now
        if report.stacks is not None and report.stacks.layout:
            self._watched.layout(report.stacks.layout)
        compares = now - self._first_at >= _GATHER_SECONDS
        before = self._watched.slow
        for paces in report.paces:
            seen = self._seen.get((report.agent, paces.rank), 0)
            tokens = [*paces.tokens, *repeat(0, len(paces.steps))]
            steps = list(zip(paces.steps, paces.own, paces.whole, tokens, strict=False))
            for step, own, whole, count in steps[max(0, seen - paces.before) :]:
                if compares:
                    self._watched.see(host, paces.rank, step, RankStep(own, whole, count))
                else:
                    self._watched.join(host, paces.rank, step)
            self._seen[report.agent, paces.rank] = max(seen, paces.before + len(steps))
        if self._watched.slow != before or (self._book is None and self._watched.steps >= _ANEW_STEPS):
            self._judged(report, ledger)

    def leave(self, agent: str, host: str) -> None:
        """Remove a lost agent and its host from the comparison."""
        self._seen = {key: count for key, count in self._seen.items() if key[0] != agent}
        if self._watched.leave(host):
            self._resolve("unknown")

    def end(self, endings: Iterable[Ending]) -> None:
        """When the run ends, resolve the incident with the worst ending of any host."""
        self._resolve(worst_resolution(endings))

    def _judged(self, report: AgentReport, ledger: Iterable[Incident]) -> None:
        if self._book is None:
            self._book = IncidentManager(report.run, "", self._changed, earlier_incidents(ledger, STRAGGLER))
        slow = self._watched.slow
        if slow is None:
            self._resolve("recovered")
            return
        now = self._wall()
        incident = self._book.get("finding", STRAGGLER)
        if incident is not None and self._host not in ("", slow.host):
            self._book.resolve(incident, now, "recovered")
            incident = None
        self._host = slow.host
        self._cost(slow.cost)
        if incident is None:
            self._book.open(
                "finding",
                STRAGGLER,
                "warning",
                now,
                rank=slow.rank,
                step=report.step,
                harm="degrading",
                note=_words(slow),
            )
        else:
            self._book.update(incident, now, rank=slow.rank, note=_words(slow))

    def _resolve(self, resolution: Resolution) -> None:
        self._cost(0.0)
        if self._book is not None:
            self._book.resolve_all(self._wall(), resolution)

    def _changed(self, trouble: Incident) -> None:
        host = self._host or trouble.host
        self._change(msgspec.structs.replace(trouble, id=qualified(RUN, trouble), host=host))


def worst_resolution(endings: Iterable[Ending]) -> Resolution:
    """Return the worst resolution among the endings of all hosts, or ``unknown`` if there are no endings."""
    ended = {RESOLUTIONS.get(ending.kind, "run-failed") for ending in endings}
    worst: tuple[Resolution, ...] = ("run-failed", "run-stopped", "run-finished")
    return next((resolution for resolution in worst if resolution in ended), "unknown")


def earlier_incidents(ledger: Iterable[Incident], *rules: str) -> list[Incident]:
    """Return the incidents of these rules from an earlier coordinator, and restore their original IDs."""
    found = []
    for known in ledger:
        for alias in known.aliases:
            agent, _, name = alias.partition(" ")
            episode = name.rpartition("/")[2]
            rule = next((rule for rule in rules if f"/{rule}/" in name), None)
            if agent == RUN and rule is not None and episode.isdecimal():
                facts = {"id": name, "kind": "finding", "rule": rule, "severity": "warning"}
                found.append(msgspec.structs.replace(known, **facts, episode=int(episode), history=[]))
    return found


def _words(slow: SlowHost) -> Message:
    who = {} if slow.rank is None else {"rank": slow.rank}
    return message(
        f"concern.{slow.kind}-{'host' if slow.rank is None else 'rank'}",
        host=slow.host,
        share=f"{slow.share:.0%}",
        cost=f"{slow.cost:.0%}",
        count=slow.steps,
        **who,
    )


def _rounded(seconds: float) -> float:
    return float(f"{seconds:.{_DIGITS}g}")
