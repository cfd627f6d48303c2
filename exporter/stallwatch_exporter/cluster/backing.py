"""Where agents of a run meet: a coordinator over HTTP, or PostgreSQL. Both keep to these protocols."""

from __future__ import annotations

from typing import Protocol

from stallwatch_exporter.cluster.wire import AgentReport, Reply


class Refused(Exception):
    """The other side refuses our reports for good: a wrong secret, another version."""


class Backing(Protocol):
    """Carries reports to the agent that merges them."""

    def post(self, report: AgentReport) -> Reply | None:
        """Send a report; ``None`` without an answer within the time that a beat allows.

        Called from a thread of its own. Raises `Refused` with one line for the user.
        """
        ...

    def close(self) -> None:
        """Leave, and give up posts that are under way."""
        ...


class Merges(Protocol):
    """The merger of one run, as both backings feed it: see ``coordinator.Coordinator``."""

    def take(self, report: AgentReport) -> Reply:
        """Take over one agent's report, and answer it; from any thread."""
        ...

    def step(self) -> None:
        """Look at the clock, about once a second: who is silent, and what is due to be sent."""
        ...
