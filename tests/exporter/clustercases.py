"""A run of several hosts for tests: agents that report, and sinks that record."""

from __future__ import annotations

from typing import Any

from stallwatch_exporter.cluster.wire import AgentReport
from stallwatch_exporter.incident import Event, Incident
from stallwatch_rules.stacks.records import StackGroup, StallStacks

T0 = 1_700_000_000.0


class Clock:
    """Monotonic clock and wall clock that the test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    def wall(self) -> float:
        return T0 + self.now


class Chat:
    """Sink that records incidents; `holds` is the number of messages that have not been sent."""

    def __init__(self) -> None:
        self.got: list[Incident] = []
        self.adopted: list[Incident] = []
        self.released: list[str] = []
        self.planned: set[str] = set()
        self.holds = False

    def __call__(self, incident: Incident) -> None:
        self.got.append(incident)

    def adopt(self, incident: Incident) -> None:
        self.adopted.append(incident)

    def release(self, incident: str) -> None:
        self.released.append(incident)

    def escalates(self, incident: str) -> bool:
        return incident in self.planned

    def has_sent(self, _incident: str) -> bool:
        return not self.holds

    @property
    def stages(self) -> list[tuple[str, str]]:
        """Return id and stage of all recorded incidents, without repetitions."""
        return list(dict.fromkeys((item.id, item.stage) for item in self.got))


def incident(at: float, number: int = 1, **facts: Any) -> Incident:
    """Return an incident of one agent in the form of its reports."""
    given: dict[str, Any] = {
        "run": "sft-8123.0",
        "kind": "stall",
        "rule": "silent-hang",
        "severity": "critical",
        "status": "open",
        "episode": number,
        "opened_at": at,
        "updated_at": at,
        "step": 40,
        **facts,
    }
    kind, rule = given["kind"], given["rule"]
    found = Incident(id=f"{given['run']}/{kind}/{rule}/{number}", **given)
    found.history = [Event(at, "opened", found.kind, found.rule, found.severity, found.rank)]
    return found


def stacks(place: str, *ranks: int, kind: Any = "code") -> StallStacks:
    """Return stacks of one host's ranks, all at the same place."""
    group = StackGroup(
        list(ranks), kind, what="all_reduce" if kind == "collective" else "", place=place, step=40
    )
    return StallStacks(0.0, 0.1, [group], elsewhere=2)


class Host:
    """One host with one agent."""

    def __init__(self, name: str, rank: int, clock: Clock, *, ahead: float = 0.0, expected: int = 3) -> None:
        self.name = name
        self.rank = rank
        self.ahead = ahead
        self._clock = clock
        self._expected = expected
        self.number = 0
        self.incidents: dict[str, Incident] = {}
        self.quiet = 0.0
        self.facts: dict[str, Any] = {}

    @property
    def agent(self) -> str:
        return f"{self.name}-1"

    def has(self, incident: Incident) -> None:
        """Add an incident to the host's reports."""
        incident.host, incident.rank = self.name, self.rank
        self.incidents[incident.id] = incident

    def wall(self) -> float:
        """Return the time of the host's own clock."""
        return self._clock.wall() + self.ahead

    def report(self, **facts: Any) -> AgentReport:
        self.number += 1
        given: dict[str, Any] = {
            "key": "5f",
            "agent": self.agent,
            "host": self.name,
            "host_id": f"id-{self.name}",
            "address": f"{self.name}:19402",
            "node": self.rank,
            "run": "sft-8123.0",
            "number": self.number,
            "started_age": self._clock.now - 900.0,
            "clock": self.wall(),
            "expected": self._expected,
            "ranks": str(self.rank),
            "world": 3,
            "step": 40,
            "quiet": self.quiet,
            "threshold": 30.0,
            "incidents": list(self.incidents.values()),
        }
        return AgentReport(**{**given, **self.facts, **facts})
