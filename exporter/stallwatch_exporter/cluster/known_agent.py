"""State of one agent of a run, as known to the run's coordinator."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from stallwatch_exporter.cluster.wire import BEAT_SECONDS, SILENT_BEATS, AgentReport, is_quiet
from stallwatch_exporter.incident import Incident
from stallwatch_rules.stacks.records import StallStacks
from stallwatch_rules.stacks.spans import ranks_in

LEAST_SILENT, MOST_SILENT = 5.0, 10.0  #: minimum and maximum number of seconds until a host counts as silent
#: Maximum delay, in seconds, of a post from a running agent, even on a busy host.
LATE_SECONDS = 3.0
_SKEWS = 32  # number of posts used to estimate the clock offset of an agent


class KnownAgent:
    """State of one agent, based on its newest report."""

    def __init__(self, report: AgentReport, now: float) -> None:
        self.report = report
        self.host = report.host  #: name of the host in the run
        self.at = now
        self.first_at = now
        self.beat = BEAT_SECONDS
        self.lost = self.closed = False  #: `closed` is true after the lost agent's incidents are closed

        # IDs and statuses of the incidents in the last reply.
        self.answered: frozenset[tuple[str, str]] = frozenset()
        self.answered_hosts: Mapping[str, str] = {}  #: ranks by host, from the last reply
        self.ranks = ranks_in(report.ranks)
        self._ahead: deque[float] = deque(maxlen=_SKEWS)

    def update(self, report: AgentReport, now: float, wall: float) -> None:
        """Replace the agent's report with a newer report."""
        if report.ranks != self.report.ranks:
            self.ranks = ranks_in(report.ranks)
        self.report, self.at, self.lost, self.closed = report, now, False, False
        self._ahead.append(report.clock - wall)

    @property
    def ahead(self) -> float:
        """Seconds by which the agent's clock is ahead of the coordinator's clock.

        Delays in posting only reduce the measured values, so the largest value is the best estimate.
        """
        return max(self._ahead, default=0.0)

    def has_part_in(self, incident: Incident) -> bool:
        """Return whether this incident of the run includes an incident from the agent."""
        return any(alias.startswith(f"{self.report.agent} ") for alias in incident.aliases)

    def is_silent(self, now: float) -> bool:
        """Return whether the agent's next post is overdue."""
        # Allow for delays because the agent's thread can be several seconds late on a busy host.
        patience = max(LEAST_SILENT, min(MOST_SILENT, (self.report.threshold or 0.0) / 3))
        limit = max(SILENT_BEATS * self.beat, patience)
        return self.report.ending is None and now - self.at > limit

    def is_quiet(self, now: float) -> bool:
        """Return whether the agent's host shows no sign of life or does not report."""
        return self.is_silent(now) or is_quiet(self.report.quiet, self.report.threshold)

    def is_overdue(self, now: float) -> bool:
        """Return whether the agent missed its next post, although it did not report the end of its command.

        While the run makes progress, an agent becomes overdue before it counts as silent. This difference
        matters only after the run has failed on other hosts, because no agent then waits for another post.
        """
        limit = max(self.beat + LATE_SECONDS, MOST_SILENT)
        return self.report.ending is None and now - self.at > limit

    def stacks(self, now: float) -> StallStacks | None:
        """Return the agent's newest stack snapshot if it belongs to the current quiet period."""
        age = self.report.stacks_age + now - self.at
        return self.report.stacks if age <= self.report.quiet + now - self.at + 1.0 else None
