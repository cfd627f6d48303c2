"""Combine the incidents from a run's agents into incidents of the run. The only other input is the clock.

This module treats an agent's incident in the way that ``watching.episodes`` treats a problem, with two
differences. First, agents detect the same event at different times, so a new incident waits for the reports
of other hosts, and later reports also join it. Second, another coordinator might already have reported the
incident.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

import msgspec

from stallwatch_exporter.cluster.absence import OVERDUE_SECONDS, Absence, cause_of
from stallwatch_exporter.incident import HOST_GONE, RANKS, Incident
from stallwatch_exporter.watching.episodes import (
    Episode,
    Episodes,
    folded_episode,
    is_about_checkpoints,
    is_over,
)
from stallwatch_exporter.watching.incidents import DRIFTING, by_wall_clock
from stallwatch_rules.stacks.records import StallStacks
from stallwatch_rules.stacks.spans import host_of

#: Seconds that a new incident waits for reports of the other hosts.
GATHER_SECONDS = 3.0
#: Maximum number of seconds for which a failed run waits for the next reports of hosts that might be gone.
AWAITED_SECONDS = OVERDUE_SECONDS + GATHER_SECONDS
#: Maximum number of seconds until a crash on one host affects the last of the other hosts. The timeouts of
#: launchers cause this delay.
LATE_SECONDS = 120.0
KEPT_SECONDS = 600.0  #: seconds for which an incident is recognized after its end
_WAITING = ("unfinished", "behind", "diverged")  # reasons for blame that imply that ranks wait in collectives
_UPDATE_SECONDS = 60.0  # seconds between two reports of frequently changing values


class View(msgspec.Struct, frozen=True):
    """Facts about the run that are not part of its incidents."""

    stacks: StallStacks | None = None  #: stacks of the ranks on all hosts
    hosts: Mapping[int, str] = {}  #: host of each rank
    missed: Absence = Absence()  #: hosts that do not report


def _is_unknown(reported: Incident | None) -> bool:
    return reported is not None and reported.resolution == "unknown"


def qualified(agent: str, incident: Incident) -> str:
    """Return an incident ID that is unique among all agents."""
    return f"{agent} {incident.id}"


def number_of(incident: Incident) -> int:
    """Return the number at the end of an incident's ID, which counts incidents of the same kind and rule."""
    number = incident.id.rpartition("/")[2]
    return int(number) if number.isascii() and number.isdecimal() else 0


class RunEpisodes(Episodes):
    """Episodes of a run, each of which combines incidents from the run's agents.

    The incidents have `qualified` IDs. `flush` reports the episodes that changed.
    """

    def __init__(
        self,
        report: Callable[[Incident], None],
        view: Callable[[], View],
        is_complete: Callable[[], bool],
        clock: Callable[[], float],
        is_awaited: Callable[[], bool] = lambda: False,
    ) -> None:
        """Set up the episodes.

        `is_complete` returns whether all hosts replied since the newest incident arrived, and `is_awaited`
        returns whether the next report from a host that might be gone is not overdue yet.
        """
        self._view = view
        self._is_complete = is_complete
        self._is_awaited = is_awaited
        self._clock = clock
        self._known: dict[str, Incident] = {}  # incidents of an earlier coordinator, by qualified ID
        self._numbers: dict[tuple[str, str], int] = {}  # highest incident number in use, by kind and rule
        super().__init__(report)

    def adopt(self, known: Incident, ago: float = 0.0) -> bool:
        """Record an incident that has already been reported to users. Return whether its state is new.

        If the incident is closed, it was closed `ago` seconds ago.

        Until an agent reports the incident, the incident has its own episode, which other incidents can join.
        """
        self._count(known)
        if self.has(known.id):
            waiting = next((episode for episode in self._episodes if known.id in episode.troubles), None)
            if waiting is None or waiting.closed or known.status == "open":
                return False
            waiting.troubles[known.id] = known
            self._recognise(waiting, known)
            return True
        before = next((other for other in self._known.values() if other.id == known.id), None)
        if before is not None and (before.status, before.severity) == (known.status, known.severity):
            return False
        self._known |= dict.fromkeys(known.aliases, known)
        for episode in self._episodes:
            if not episode.troubles.keys().isdisjoint(known.aliases):
                self._recognise(episode, known)
        if not self.has(known.id) and (known.status == "open" or ago < LATE_SECONDS):
            over = known.status == "resolved"
            episode = Episode(
                {known.id: known},
                list(known.history),
                known,
                changed=False,
                closed=over,
                id=known.id,
                began=self._clock(),
                closed_at=self._clock() - ago if over else None,
            )
            self._episodes.append(episode)
        return True

    def awaits(self, name: str) -> bool:
        """Return whether the incident is open and no agent has reported it yet."""
        return any(name in episode.troubles and not episode.closed for episode in self._episodes)

    @property
    def has_news(self) -> bool:
        """Return whether an open episode has a change that has not been reported yet."""
        return any(episode.changed and not episode.closed for episode in self._episodes)

    def _count(self, known: Incident) -> None:
        """Record that the incident's number is in use, so that no later incident gets the same ID."""
        self._numbers[known.began_as] = max(number_of(known), self._numbers.get(known.began_as, 0))

    def has(self, name: str) -> bool:
        """Return whether the run has an incident with this ID."""
        return any(name == episode.id or name in episode.merged for episode in self._episodes)

    def begin(self, trouble: Incident) -> Episode:
        """Begin an episode for an agent's incident.

        If an incident that has already been reported includes the agent's incident, the episode gets the ID
        of the reported incident. Otherwise, it gets a new ID.
        """
        known = self._known.get(trouble.id)
        if known is not None:
            return Episode(id=known.id, began=self._clock())
        kind, rule = trouble.began_as
        number = max(trouble.episode, self._numbers.get((kind, rule), 0) + 1)
        self._numbers[kind, rule] = number
        return Episode(id=f"{trouble.run}/{kind}/{rule}/{number}", began=self._clock())

    def take(self, trouble: Incident) -> None:
        """Add a changed incident from an agent to the episode that contains the incident."""
        lost = self._of(trouble)
        if lost is not None and lost.closed and not is_over(trouble) and _is_unknown(lost.reported):
            # The agent was considered lost but has resumed posting, so this is a separate incident.
            lost.troubles[f"{trouble.id} lost"] = lost.troubles.pop(trouble.id)
            self._known.pop(trouble.id, None)
        super().take(trouble)
        known, episode = self._known.get(trouble.id), self._of(trouble)
        if episode is not None and episode.failed_at is None and trouble.kind == "ended":
            episode.failed_at = self._clock()
        if known is not None and episode is not None:
            episode.troubles.pop(known.id, None)
            self._recognise(episode, known)

    def _recognise(self, episode: Episode, known: Incident) -> None:
        """Treat the episode as the incident `known`, which has already been reported.

        If the episode has also been reported, the ID of the incident that opened first is kept.
        """
        mine, before = episode.id, episode.reported
        merged, over = episode.merged, known.status == "resolved"
        rest = [
            incident
            for incident in episode.troubles.values()
            if not is_over(incident) and incident.id not in known.aliases
        ]
        if over and known.id != mine and (rest or before is not None):
            merged[known.id] = known.opened_at  # a host without a connection closed its part of the incident
            return
        if before is None or (known.id != mine and known.opened_at < before.opened_at):
            if before is not None:
                merged[mine] = before.opened_at
            episode.id = known.id
            episode.reported = known
        elif known.id != mine:
            merged[known.id] = known.opened_at
        if over and not rest and not episode.closed:
            episode.closed, episode.closed_at = True, self._clock()

    def joins(self, trouble: Incident, episode: Episode) -> bool:
        """Return whether an agent's new incident is part of this episode of the run."""
        known = self._known.get(trouble.id)
        if known is not None:
            return known.id in {episode.id, *episode.merged}
        if is_about_checkpoints(trouble) and is_about_checkpoints(episode.first):
            return not episode.closed and trouble.rule == episode.first.rule
        if episode.closed:
            since = self._clock() - (-KEPT_SECONDS if episode.closed_at is None else episode.closed_at)
            failed = any(
                incident.kind == "ended" or incident.resolution == "run-failed"
                for incident in episode.troubles.values()
            )
            late = is_over(trouble) and trouble.kind != "ended"  # a crash after a recovery is a new incident
            return since < LATE_SECONDS and (failed or late)
        return super().joins(trouble, episode)

    def is_due(self, episode: Episode) -> bool:
        """Return whether the episode can be reported.

        It can be reported if it has been reported before, or if all hosts have replied or had enough time to
        reply since the newest incident arrived. If all known failures show only that peers were lost, the
        episode waits for the next report of each host because a host that does not report is then the cause.
        This wait is limited because each host on which the run fails later prolongs the wait.
        """
        if self._is_complete():
            return True
        now = self._clock()
        waited = now - episode.failed_at if episode.failed_at is not None else 0.0
        if _only_of_peers(episode) and waited < AWAITED_SECONDS and self._is_awaited():
            return False
        return episode.reported is not None or now - episode.began >= GATHER_SECONDS

    def is_news(self, incident: Incident, reported: Incident | None) -> bool:
        """Return whether the incident has changed enough to be reported."""
        if reported is None or incident.updated_at - reported.updated_at >= _UPDATE_SECONDS:
            return True
        if _blamed(incident.stacks) != _blamed(reported.stacks):
            return True
        # Ignore differences between stacks because hosts take snapshots repeatedly.
        drifting = {*DRIFTING, "updated_at", "stacks"}
        lasting = {name for name in incident.__struct_fields__ if name not in drifting}
        return any(getattr(incident, name) != getattr(reported, name) for name in lasting)

    def note(self, episode: Episode, trouble: Incident, before: Incident | None) -> None:
        """Add a change to the episode's history, unless another host has already reported this change."""
        known = len(episode.history)
        super().note(episode, trouble, before)
        seen = {(event.what, event.kind, event.rule, event.severity) for event in episode.history[:known]}
        episode.history[known:] = [
            event
            for event in episode.history[known:]
            if event.what != "cleared" and (event.what, event.kind, event.rule, event.severity) not in seen
        ]

    def fold(self, episode: Episode) -> Incident:
        """Combine the episode into one incident of the run, including the blamed rank and host."""
        view = self._view()
        odd = set(view.stacks.odd) if view.stacks is not None else set()
        guilty = {view.hosts[rank] for rank in odd if rank in view.hosts}

        def precedence(incident: Incident) -> tuple[float, ...]:
            kind = ("ended", "stall", "finding").index(incident.kind)
            symptom = incident.of_peers or (
                incident.primary is not None and incident.primary.role == "symptom"
            )
            innocent = incident.kind == "stall" and incident.host not in guilty
            order = (kind if incident.severity == "critical" else 3, symptom, innocent)
            return (*order, -RANKS[incident.severity], incident.opened_at)

        folded = folded_episode(episode, precedence)
        folded.id = episode.id
        folded.run = (episode.reported or episode.first).run  # hosts can use different names for the run
        if episode.reported is not None:  # the reported time identifies notifications, and clock offsets vary
            folded.opened_at = episode.reported.opened_at
        folded.aliases = sorted(episode.troubles.keys() - {folded.id})
        folded.hosts = sorted({incident.host for incident in episode.troubles.values()})
        folded.folder_host = folded.folder_host or folded.host
        _keep_place(folded, episode)
        if any(incident.kind == "stall" for incident in episode.troubles.values()):
            self._locate(folded, episode, view)
            _lengthen(folded, episode)
        folded.run_hosts = view.missed.expected
        missed = msgspec.structs.replace(view.missed, gone=_explaining(view.missed.gone, folded))
        cause = cause_of(folded, missed) if _is_unexplained(episode) else None
        if cause is not None:
            folded.rule, folded.primary, folded.rank, folded.note = cause.rule, cause, None, ""
            folded.host = cause.host or folded.host
            folded.gone_hosts = dict(missed.gone) if cause.rule == HOST_GONE else {}
        return folded

    def _locate(self, folded: Incident, episode: Episode, view: View) -> None:
        """Set the stacks of the ranks on all hosts, the blamed rank, and the blamed host.

        The reported location is kept in the following cases:

        * The stall has ended.
        * The later snapshots are less certain than the reported location. A host that has lost its connection
          seems silent, and the stalled ranks end after a while.
        * A silent host posts again while its ranks, possibly together with other ranks, wait in a collective.
          In this case, the connections between the ranks are broken.
        * All silent hosts posted their stacks earlier, which means that they lost their connection during the
          stall.
        * The host of the blamed rank no longer posts.
        """
        reported, now = episode.reported, view.stacks
        before = reported.stacks if reported is not None else None
        going = {
            name
            for name, incident in episode.troubles.items()
            if incident.kind == "stall" and not is_over(incident)
        }
        if not going or now is None:
            folded.stacks = before or folded.stacks
        elif reported is None or before is None:
            folded.stacks = now
        else:
            is_same_stall = not going.isdisjoint({reported.id, *reported.aliases})
            folded.stacks = _surer(before, now, is_same_stall)
        stacks = folded.stacks
        if stacks is not None and stacks.odd and folded.is_standstill:
            folded.rank = stacks.odd[0]
            lost = (
                stacks.silent[0] if stacks.why == "unreachable" and len(stacks.silent) == 1 else folded.host
            )
            folded.host = host_of(folded.rank, stacks.hosts) or view.hosts.get(folded.rank, lost)
            self._find_folder(folded, episode)

    def _find_folder(self, folded: Incident, episode: Episode) -> None:
        """Set the folder to the folder on the blamed host, unless that host sent no incident."""
        for trouble in episode.troubles.values():
            if trouble.folder and (trouble.folder_host or trouble.host) == folded.host:
                folded.folder, folded.folder_host = trouble.folder, folded.host

    def outlives(self, episode: Episode) -> bool:
        """Return whether to keep a closed episode because agents might still report it."""
        now = self._clock()
        episode.closed_at = now if episode.closed_at is None else episode.closed_at
        return now - episode.closed_at < KEPT_SECONDS or super().outlives(episode)

    def further_ids(self, incident: Incident) -> Mapping[str, float]:
        """Return the other IDs of the incident, each with the opening time that was reported under that ID.

        A host that has no connection to the other hosts reports the incident under its own ID.
        """
        return next((episode.merged for episode in self._episodes if episode.id == incident.id), {})


def _keep_place(folded: Incident, episode: Episode) -> None:
    """If several hosts have the same problem, keep the host and rank that were reported first.

    Otherwise, the closing message would name the host that ended first.
    """
    before = episode.reported
    if before is None or before.rank is None or before.rule != folded.rule:
        return
    if "stall" in (before.kind, folded.kind):  # the stacks of all hosts determine the rank
        return
    for trouble in episode.troubles.values():
        if (trouble.rule, trouble.host, trouble.rank) == (before.rule, before.host, before.rank):
            folded.rank, folded.host, folded.primary = trouble.rank, trouble.host, trouble.primary
            folded.evidence, folded.folder = trouble.evidence, trouble.folder
            folded.folder_host = trouble.folder_host or trouble.host


def _lengthen(folded: Incident, episode: Episode) -> None:
    """Set the start of the stall to the earliest start that any agent reported for the stall.

    If an agent was stopped or was started during the stall, the agent reports a start that is too late.
    """
    since = folded.stalled_since
    if since is None:
        return
    ends = since + GATHER_SECONDS  # earlier stalls ended before this time
    alike = [
        stall.stalled_since
        for stall in episode.troubles.values()
        if stall.stalled_since is not None and (not is_over(stall) or (stall.resolved_at or 0.0) > ends)
    ]
    folded.stalled_since = min([since, *alike])
    folded.stalled_seconds = (folded.stalled_seconds or 0.0) + since - folded.stalled_since


def _only_of_peers(episode: Episode) -> bool:
    """Return whether the run failed, and all known failures show only that peers were lost."""
    ended = [incident for incident in episode.troubles.values() if incident.kind == "ended"]
    if episode.reported is not None and episode.reported.kind == "ended":
        return False
    return bool(ended) and all(incident.of_peers for incident in ended)


def _explaining(gone: Mapping[str, float], incident: Incident) -> Mapping[str, float]:
    """Return the lost hosts that can explain the incident.

    If the stacks show which ranks hold up the run, only a host that was lost during the stall can explain the
    incident.
    """
    stacks = incident.stacks
    if stacks is None or not stacks.odd or stacks.why == "unreachable":
        return gone
    return {host: at for host, at in gone.items() if at >= incident.opened_at}


def _is_unexplained(episode: Episode) -> bool:
    """Return whether all critical problems are stalls or show only that peers were lost."""
    return all(
        incident.of_peers or incident.kind == "stall" or incident.severity != "critical"
        for incident in episode.troubles.values()
    )


def _surer(before: StallStacks, now: StallStacks, is_same_stall: bool) -> StallStacks:
    """Return the snapshot with the more certain location: either `before`, which was reported, or `now`."""
    is_lost_later = is_same_stall and (_is_lost_later(before, now) or _is_out_of_sight(before, now))
    if is_lost_later and before.why != "unreachable":
        return msgspec.structs.replace(before, silent=now.silent)
    is_back = before.why == "unreachable" and (
        not now.odd or (now.why in _WAITING and set() < set(before.odd) <= set(now.odd))
    )
    return before if is_lost_later or is_back or now.confidence < before.confidence else now


def _is_lost_later(before: StallStacks, now: StallStacks) -> bool:
    """Return whether all hosts that are newly blamed for being silent had posted their stacks earlier.

    Such a host lost its connection during a stall that other ranks had caused. A host that has already been
    blamed for its silence stays blamed.
    """
    blamed = {*before.silent} if before.why == "unreachable" else set()
    silenced = {*now.silent} - blamed
    return bool(before.odd and silenced) and now.why == "unreachable" and silenced <= before.hosts.keys()


def _is_out_of_sight(before: StallStacks, now: StallStacks) -> bool:
    """Return whether silent hosts are blamed in `now`, which contains no host of a previously blamed rank.

    This occurs if the hosts of a coordinator switch to another coordinator, for example, after a network
    partition.
    """
    if before.why == "unreachable" or now.why != "unreachable" or not before.odd:
        return False
    return {host_of(rank, before.hosts) for rank in before.odd}.isdisjoint(now.hosts)


def _blamed(stacks: StallStacks | None) -> object:
    """Return the parts of a stack snapshot whose changes are reported to users."""
    return stacks and (stacks.odd, stacks.why, stacks.candidates, stacks.silent)


def in_run(incident: Incident, agent: str, host: str, ahead: float) -> Incident:
    """Convert an agent's incident to use the coordinator's times, a qualified ID, and the hostname `host`.

    `host` is the name of the agent's host in the run. `ahead` is the number of seconds by which the agent's
    clock is ahead of the coordinator's clock.
    """
    moved = by_wall_clock(incident, -ahead)
    return msgspec.structs.replace(moved, id=qualified(agent, incident), host=host)


def in_brief(incident: Incident) -> Incident:
    """Return an incident reduced to the fields that the next coordinator needs to recognize and close it.

    While the incident is open, the reduced incident includes the stacks of the blamed ranks, because the next
    coordinator might have lost the connection to their host.
    """
    stacks = incident.stacks
    if stacks is not None:
        blamed = [group for group in stacks.groups if not set(stacks.odd).isdisjoint(group.ranks)]
        stacks = msgspec.structs.replace(stacks, groups=blamed, layout=[], pids={})
    return msgspec.structs.replace(
        incident,
        stacks=stacks if stacks is not None and stacks.odd and incident.status == "open" else None,
        evidence=[],
        background=[],
        history=incident.history[:1],
    )


def joined_ledgers(ledgers: Iterable[Iterable[Incident]]) -> list[Incident]:
    """Return the newest state of each incident in the given ledgers of reported incidents."""
    found: dict[str, Incident] = {}
    for incident in (entry for ledger in ledgers for entry in ledger):
        before = found.get(incident.id)
        if before is None or (before.updated_at, len(before.aliases)) <= (
            incident.updated_at,
            len(incident.aliases),
        ):
            found[incident.id] = incident
    return list(found.values())


def kept_ledger(known: Iterable[Incident], now: float, held: Collection[str] = ()) -> dict[str, Incident]:
    """Return the incidents that stay in the ledger, by ID.

    Open and recently closed incidents stay. The last incident of each kind and rule also stays because the
    next coordinator continues the numbering from it. `held` contains aliases of open incidents. Incidents
    with these aliases also stay.
    """
    known, held = list(known), frozenset(held)
    last: dict[tuple[str, str], tuple[int, str]] = {}
    for incident in known:
        last[incident.began_as] = max(last.get(incident.began_as, (0, "")), _place(incident.id))
    found: dict[str, Incident] = {}
    for incident in known:
        lately = incident.resolved_at is None or now - incident.resolved_at < KEPT_SECONDS
        if lately or not held.isdisjoint(incident.aliases):
            found[incident.id] = incident
        elif last[incident.began_as] == _place(incident.id):
            found[incident.id] = msgspec.structs.replace(incident, aliases=[], history=[])
    return found


def _place(name: str) -> tuple[int, str]:
    return len(name), name
