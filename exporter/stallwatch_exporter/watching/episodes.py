"""Combine the problems of a run into one incident per episode, regardless of the number of rules and ranks.

A problem (``trouble`` in the code) is the state that the ``IncidentManager`` keeps for one kind and rule.
While an episode is open, further problems, stacks, and causes update its incident. The incident closes when
its critical problems have ended or when the run ends.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Literal

import msgspec

from stallwatch_exporter.incident import RANKS, Event, Incident, Resolution, Severity
from stallwatch_rules.judgements.concerns import CHECKPOINT
from stallwatch_rules.locale import contains_message

#: Minimum number of seconds between two critical problems of separate episodes, if the run completed steps in
#: the meantime.
APART_SECONDS = 600.0
_MOST_EVENTS = 60
# Resolutions, worst first. The worst resolution of a problem becomes the resolution of its episode.
_RESOLUTIONS: Sequence[Resolution] = (
    "run-failed",
    "unmended",
    "run-stopped",
    "run-finished",
    "unknown",
    "recovered",
    "",
)


class Episode(msgspec.Struct):
    """An episode and the newest state of each of its problems."""

    troubles: dict[str, Incident] = {}  # by ID
    history: list[Event] = []
    reported: Incident | None = None  # last state sent to the sinks
    changed: bool = True
    closed: bool = False
    # These fields are set only for a run across several hosts:
    id: str = ""  # ID of the run's incident
    began: float = 0.0  # time at which the first incident arrived
    failed_at: float | None = None  # time at which the first incident about the end of a command arrived
    closed_at: float | None = None
    merged: dict[str, float] = {}  # opening times of other incidents that were sent, by ID

    @property
    def first(self) -> Incident:
        return next(iter(self.troubles.values()))

    @property
    def severity(self) -> Severity:
        seen = [event.severity for event in self.history]
        seen += [trouble.severity for trouble in self.troubles.values()]
        return max(seen, key=lambda each: RANKS[each])


class Episodes:
    """Combine problems into episodes. Call `take` for each change of a problem, and `flush` after each tick.

    `report` receives the incidents. `past` contains the changes that earlier agents of this run stored.
    Users have already been notified of changes up to `reported_until`. If this time is finite, open
    incidents are sent again, because destinations ignore incidents that they have already received.
    """

    def __init__(
        self,
        report: Callable[[Incident], None],
        past: Iterable[Incident] = (),
        reported_until: float = math.inf,
    ) -> None:
        self._report: Callable[[Incident], None] = lambda incident: (
            report(incident) if incident.updated_at > reported_until else None
        )
        self._episodes: list[Episode] = []
        self.replay(past)
        self._report = report
        for episode in self._episodes:
            incident = None if episode.closed else episode.reported
            if incident is not None and incident.updated_at <= reported_until < math.inf:
                report(incident)

    def take(self, trouble: Incident) -> None:
        """Add a changed problem to its episode."""
        episode = self._of(trouble)
        if episode is None:
            episode = next(
                (episode for episode in reversed(self._episodes) if self.joins(trouble, episode)), None
            )
            if episode is None:
                episode = self.begin(trouble)
                self._episodes.append(episode)
        before = episode.troubles.get(trouble.id)
        episode.troubles[trouble.id] = trouble
        if not episode.closed:  # a warning can outlive its closed episode
            episode.changed = True
            self.note(episode, trouble, before)

    def flush(self) -> None:
        """Report the incidents of the episodes that changed."""
        for episode in self._episodes:
            if not episode.changed or episode.closed or not self.is_due(episode):
                continue
            incident = self.fold(episode)
            episode.changed = False
            if incident.status == "resolved":
                episode.closed = True
                if episode.reported is None and incident.resolution == "recovered":
                    continue  # the problem ended before it was reported
            if self.is_news(incident, episode.reported):
                episode.reported = incident
                self._report(msgspec.structs.replace(incident, history=list(incident.history)))
        self._episodes = [
            episode for episode in self._episodes if not episode.closed or self.outlives(episode)
        ]

    def incident_of(self, trouble: Incident) -> Incident:
        """Return the incident of the episode that contains the problem."""
        episode = self._of(trouble)
        return trouble if episode is None else self.fold(episode)

    # ---- methods that ``cluster.merging`` overrides for a run across several hosts

    def begin(self, trouble: Incident) -> Episode:  # noqa: ARG002
        """Return a new episode for a problem that belongs to no open episode."""
        return Episode()

    def joins(self, trouble: Incident, episode: Episode) -> bool:
        """Return whether a new problem belongs to this episode. A checkpoint fault has its own episode."""
        apart = is_about_checkpoints(episode.first) or is_about_checkpoints(trouble)
        if episode.closed or apart:
            return False
        if trouble.kind == "ended":
            return True
        if is_done(episode):
            return False
        critical = [trouble for trouble in episode.troubles.values() if trouble.severity == "critical"]
        if trouble.severity != "critical" or not critical:
            return True
        last = max(critical, key=lambda trouble: trouble.opened_at)
        # Require a difference of two steps because other ranks can be one step ahead.
        stepped = (trouble.step or 0) > (last.step or 0) + 1
        return not stepped or trouble.opened_at - last.opened_at < APART_SECONDS

    def is_due(self, episode: Episode) -> bool:  # noqa: ARG002
        """Return whether changes to the episode can be reported."""
        return True

    def is_news(self, incident: Incident, reported: Incident | None) -> bool:
        """Return whether the incident differs from its last reported state."""
        return incident != reported

    def note(self, episode: Episode, trouble: Incident, before: Incident | None) -> None:
        """Add a changed problem to the history of its episode."""

        def add(what: Literal["opened", "worse", "stacks", "cause", "cleared"], rank: int | None) -> None:
            if len(episode.history) < _MOST_EVENTS:
                at = trouble.opened_at if what == "opened" else trouble.updated_at
                episode.history.append(Event(at, what, trouble.kind, trouble.rule, trouble.severity, rank))

        if trouble.kind == "ended" and episode.history:
            return  # the ending of the episode includes this event
        if before is None or (before.kind, before.rule) != (trouble.kind, trouble.rule):
            add("opened" if before is None else "cause", trouble.rank)
        elif RANKS[trouble.severity] > RANKS[before.severity]:
            add("worse", trouble.rank)
        if trouble.stacks is not None and (before is None or before.stacks is None):
            add("stacks", trouble.stacks.odd[0] if trouble.stacks.odd else None)
        if trouble.status == "resolved" and (before is None or before.status == "open"):
            add("cleared", None)

    def fold(self, episode: Episode) -> Incident:
        """Combine the episode into one incident."""
        return folded_episode(episode)

    def outlives(self, episode: Episode) -> bool:
        """Return whether to keep a closed episode because some of its problems are still open."""
        return not all(is_over(trouble) for trouble in episode.troubles.values())

    def _of(self, trouble: Incident) -> Episode | None:
        return next((episode for episode in self._episodes if trouble.id in episode.troubles), None)

    def replay(self, troubles: Iterable[Incident]) -> None:
        """Process all changes in a journal, oldest first. Changes with the same time belong together."""
        at = 0.0
        for trouble in troubles:
            if trouble.updated_at != at:
                self.flush()
            at = trouble.updated_at
            self.take(trouble)
        self.flush()


def folded(troubles: Iterable[Incident]) -> list[Incident]:
    """Return the incidents that result from the problems in a run's journal, oldest first."""
    found: dict[str, Incident] = {}
    Episodes(lambda incident: found.update({incident.id: incident})).replay(troubles)
    return list(found.values())


def is_about_checkpoints(trouble: Incident) -> bool:
    return contains_message(trouble.note, f"concern.{CHECKPOINT}")


def is_over(trouble: Incident) -> bool:
    return trouble.status == "resolved" or trouble.is_final_incident


def is_done(episode: Episode) -> bool:
    """Return whether the run or its critical problems (if none was critical, all problems) have ended."""
    going = [trouble for trouble in episode.troubles.values() if not is_over(trouble)]
    if episode.severity == "critical":
        going = [trouble for trouble in going if trouble.severity == "critical"]
    return not going or any(trouble.kind == "ended" for trouble in episode.troubles.values())


def folded_episode(
    episode: Episode, precedence: Callable[[Incident], tuple[float, ...]] | None = None
) -> Incident:
    """Combine the episode into one incident.

    The incident is the problem with the lowest `precedence`, completed by facts from the other problems.
    """
    troubles = list(episode.troubles.values())
    going = [trouble for trouble in troubles if not is_over(trouble)]
    closes = is_done(episode)
    resolution: Resolution = "" if not closes else min(map(_resolution, troubles), key=_RESOLUTIONS.index)
    leading = [trouble for trouble in troubles if _resolution(trouble) == resolution] if closes else going
    lead = min(leading or troubles, key=precedence or _precedence)
    stall = max(
        (trouble for trouble in troubles if trouble.kind == "stall"),
        key=lambda trouble: trouble.opened_at,
        default=None,
    )
    opened = min(trouble.opened_at for trouble in troubles)
    # Do not let any time precede the opening. A line can be read late, and its time can be ahead of the
    # agent's clock.
    updated = max(opened, *(trouble.updated_at for trouble in troubles))
    over = max(opened, *(trouble.resolved_at or trouble.updated_at for trouble in troubles))
    history = list(episode.history)
    if closes:
        event = Event(updated, "closed", lead.kind, lead.rule, lead.severity, lead.rank)
        # If a problem ended at the closing time, omit its end, because the closing event already reports
        # the end.
        history = [*(each for each in history if (each.what, each.at) != ("cleared", updated)), event]
    folded = msgspec.structs.replace(
        lead,
        id=episode.first.id,
        episode=episode.first.episode,
        opened_at=opened,
        updated_at=updated,
        severity=episode.severity,
        status="resolved" if closes else "open",
        resolution=resolution,
        resolved_at=over if closes else None,
        ending=next((trouble.ending for trouble in troubles if trouble.ending is not None), None),
        history=history,
    )
    if lead.rank is None and lead.primary is None:
        folded.rank = next((trouble.rank for trouble in troubles if trouble.rank is not None), None)
    if stall is not None and (closes or stall in going):
        folded.stalled_since, folded.stalled_seconds = stall.stalled_since, stall.stalled_seconds
        folded.threshold_seconds = stall.threshold_seconds
        folded.learning, folded.at_floor, folded.stacks = stall.learning, stall.at_floor, stall.stacks
    return folded


def _resolution(trouble: Incident) -> Resolution:
    return "run-failed" if trouble.kind == "ended" else trouble.resolution


def _precedence(trouble: Incident) -> tuple[float, ...]:
    kind = ("ended", "stall", "finding").index(trouble.kind)
    return (kind if trouble.severity == "critical" else 3, -RANKS[trouble.severity], trouble.opened_at)
