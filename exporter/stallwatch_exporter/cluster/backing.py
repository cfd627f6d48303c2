"""The protocols of the meeting place of a run's agents: a coordinator over HTTP, or PostgreSQL."""

from __future__ import annotations

from typing import Protocol

from stallwatch_exporter.cluster.wire import AgentReport, Reply


class Refused(Exception):
    """The other side refuses our reports permanently: a wrong secret, another version."""


class Backing(Protocol):
    """Carries reports to the agent that merges them."""

    def post(self, report: AgentReport) -> Reply | None:
        """Send a report; return ``None`` without an answer within the time that a beat allows.

        Called from a thread of its own. Raises `Refused` with one line for the user.
        """
        ...

    def close(self) -> None:
        """Leave, and give up posts that are under way."""
        ...


class Merges(Protocol):
    """The merger of one run, as both backings use it: see ``coordinator.Coordinator``."""

    def take(self, report: AgentReport) -> Reply:
        """Take one agent's report, and answer it; from any thread."""
        ...

    def step(self) -> None:
        """Check the clock, about once a second: which agents are silent, and what is due to be sent."""
        ...
