"""Protocols for transporting reports between a run's agents over HTTP or PostgreSQL."""

from __future__ import annotations

from typing import Protocol

from stallwatch_exporter.cluster.wire import AgentReport, Reply


class Refused(Exception):
    """Raised if the receiver rejects the agent because of a wrong secret or a different version."""


class Backing(Protocol):
    """Transport that carries an agent's reports to the agent that merges them."""

    def post(self, report: AgentReport) -> Reply | None:
        """Send a report. Return the reply, or ``None`` if no reply arrives before the next post is due.

        This method is called from a separate thread. Raises `Refused` with a one-line message for the user.
        """
        ...

    def close(self) -> None:
        """Stop sending and cancel posts in progress."""
        ...


class Merges(Protocol):
    """Object that merges the reports of one run, such as a ``coordinator.Coordinator``."""

    def take(self, report: AgentReport) -> Reply:
        """Process one agent's report and return the reply. Any thread can call this method."""
        ...

    def step(self) -> None:
        """Detect silent agents and report changes that are due. This method is called once a second."""
        ...
