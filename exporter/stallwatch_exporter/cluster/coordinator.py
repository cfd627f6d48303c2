"""Merge the reports from the agents of one run into incidents of the run."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from stallwatch_exporter import steady
from stallwatch_exporter.cluster.absence import Absence, absence
from stallwatch_exporter.cluster.absent_hosts import AbsentHosts
from stallwatch_exporter.cluster.host import split_address
from stallwatch_exporter.cluster.known_agent import LEAST_SILENT, KnownAgent
from stallwatch_exporter.cluster.merging import (
    KEPT_SECONDS,
    RunEpisodes,
    View,
    in_brief,
    in_run,
    kept_ledger,
)
from stallwatch_exporter.cluster.slowness import Slowness
from stallwatch_exporter.cluster.wire import (
    BEAT_SECONDS,
    QUIET_BEAT_SECONDS,
    SILENT_BEATS,
    AgentReport,
    Member,
    Reply,
    beat_of,
    digest_of,
    is_quiet,
)
from stallwatch_exporter.incident import Incident, Sink, optional_methods
from stallwatch_exporter.notices import Guard, surviving
from stallwatch_rules.stacks.folding import by_host, of_odd_ranks, over_hosts
from stallwatch_rules.stacks.quiet_periods import HostView, Ruling, run_ruling
from stallwatch_rules.stacks.records import StallStacks
from stallwatch_rules.stacks.spans import ranks_in

# Seconds of silence after which an agent counts as lost. If the run continues, its open incidents close.
_LOST_SECONDS = 60.0
# If this process was suspended for more than this number of seconds, another agent might have merged
# the reports in the meantime, so this agent discards its data.
_ABSENT_SECONDS = 15.0
# Seconds of silence after which an agent is removed. Its open incidents close in any case.
_FORGET_SECONDS = 900.0
_MOST_AGENTS = 16_384
_MOST_ABSENT = 4096
# Maximum number of posts per second that a coordinator receives in a quiet period. If there are many hosts,
# each host posts less often.
_PER_SECOND = 48.0
_SLOWEST = BEAT_SECONDS / 2  # maximum number of seconds between two posts of a host in a quiet period
_SHARED_SECONDS = 0.5  # minimum number of seconds for which the common part of a reply is reused


#: Function that takes three values: the number of expected hosts, of reporting hosts, and of silent hosts. If
#: another agent merges the reports, all three values are ``None``.
HostCounts = Callable[[int | None, int | None, int | None], None]


class Coordinator:
    """Merge the reports from a run's agents. Pass each change to the run's incidents to `sinks` only once."""

    def __init__(
        self,
        sinks: Sequence[Sink],
        *,
        name: str = "",
        clock: Callable[[], float] = steady.now,
        wall: Callable[[], float] = time.time,
        notice: Callable[[str], None] = lambda _: None,
        hosts: HostCounts = lambda _expected, _reporting, _silent: None,
        slowdown: Callable[[float], None] = lambda _: None,
    ) -> None:
        """Set up a coordinator.

        `name` is the name of the agent or service that contains the coordinator. `slowdown` receives the
        fraction of the throughput that is lost because of a slow host.
        """
        self.name = name
        self._sinks = sinks
        self._clock = clock
        self._wall = wall
        self._notice = notice
        self._hosts = hosts
        self._guarded = Guard(surviving(notice))
        self._slowdown = slowdown
        self._lock = threading.RLock()
        self._present_at = clock()
        self._shown: dict[str, Incident] = {}  # open incidents that the sinks received, by ID

        # Incidents that were open when another coordinator took over, by ID.
        self._passed_on: dict[str, Incident] = {}
        self._unsent: dict[str, Incident] = {}  # reported incidents that might not have been sent yet
        self._ledger: dict[str, Incident] = {}  # incidents that were sent, by ID
        self._newest_at = 0.0  # time of the last change of an agent's incident
        self._claimed: set[int] = set()  # ranks claimed by two agents
        self._start_anew()

    def _start_anew(self) -> None:
        """Set up the state of a run for which no report has arrived yet."""
        self._agents: dict[str, KnownAgent] = {}
        self._named: dict[str, str] = {}  # ID of each host, by its name in the run

        # Ranks of each host that does not post, and the time when an agent first reported the host.
        self._absent: dict[str, tuple[str, float]] = {}
        self._episodes = RunEpisodes(
            self._report, self._view, self._is_complete, self._clock, lambda: self._absence().is_awaited
        )
        self._slowness = Slowness(self._episodes.take, self._clock, self._wall, self._slowdown)
        self._absent_hosts = AbsentHosts(self._episodes.take, self._clock, self._wall)
        self._progressing, self._progressing_since, self._progressed_at = False, -math.inf, -math.inf
        self._released: set[str] = set()  # incidents of `_passed_on` that the other coordinator escalates
        self._adopted_at: dict[str, float] = {}  # times at which incidents of other coordinators were adopted
        self._shared: Reply | None = None  # part of the replies that is the same for all agents
        self._shared_at = 0.0
        self._members_digest = 0

    # ---- reports

    def take(self, report: AgentReport) -> Reply:
        """Process one agent's report and return the reply."""
        with self._lock:
            now = self._present()
            agent = self._agents.get(report.agent)
            before = {} if agent is None else {incident.id: incident for incident in agent.report.incidents}
            names_hosts = agent is None or report.hosts != agent.report.hosts
            is_new = agent is None or report.host != agent.report.host
            taken = msgspec.structs.replace(report, hosts=self._same(report.hosts), ledger=[])
            if agent is None:
                if len(self._agents) >= _MOST_AGENTS:
                    return Reply(refused=f"the run already has {_MOST_AGENTS:,} agents, which is the maximum")
                agent = self._agents[report.agent] = KnownAgent(taken, now - report.age)
            elif report.number <= agent.report.number:
                return self._reply(agent, now)
            agent.update(taken, now - report.age, self._wall() - report.age)
            if is_new:
                agent.host = self._name_of(report)
            agent.beat = max(self._least_beat, beat_of(report.quiet, report.threshold))
            if names_hosts:
                self._note_absent(report.hosts, now)
            for known in report.ledger:
                self._adopt(known)
            for incident in report.incidents:
                if before.get(incident.id) != incident:
                    self._newest_at = now
                self._episodes.take(in_run(incident, report.agent, agent.host, agent.ahead))
            if report.paces or report.ending is not None:
                self._slowness.take(report, agent.host, self._ledger.values())
            return self._reply(agent, now)

    def step(self) -> None:
        """Find lost agents and report changes that are due. This method is called about once a second."""
        with self._lock:
            now = self._present()
            self._note_progress(now)
            for agent in list(self._agents.values()):
                self._look(agent, now)
            self._close_orphans(now)
            self._drop_replaced()
            missed, ranks = self._absence(), self._ranks(self._agents.values())
            self._absent_hosts.look(self._up(), missed, self._ledger.values(), ranks)
            up = [agent for agent in self._up() if agent.host not in missed.gone]
            if up and all(agent.report.ending is not None for agent in up):
                endings = [agent.report.ending for agent in up if agent.report.ending]
                self._slowness.end(endings)
                self._absent_hosts.end(endings)
            self._episodes.flush()
            self._note_sent()
            self._count_hosts(missed, now)

    def leave(self, ledger: Iterable[Incident] = (), escalates: Iterable[str] = ()) -> None:
        """Clear the run's state because the run's agents now report to another coordinator.

        `ledger` contains incidents of the other coordinator. If an incident is closed in this ledger, the
        sinks of this coordinator also close it. `escalates` contains the IDs of the incidents that the other
        coordinator escalates. The sinks of this coordinator stop escalating these incidents.
        """
        with self._lock:
            adopted = {
                incident.id: incident for incident in self._ledger.values() if incident.status == "open"
            }
            self._passed_on |= adopted | self._shown
            self._ledger.clear()
            if self._agents:
                self._start_anew()
                self._hosts(None, None, None)
                for known in self._unsent.values():
                    self._episodes.adopt(known)
            for name in self._passed_on.keys() & {*escalates} - self._released:
                self._released.add(name)
                self._each_sink("release", name)
            for over in ledger:
                before = self._passed_on.pop(over.id, None) if over.status == "resolved" else None
                if before is not None:
                    self._conclude(before, over)

    def _conclude(self, before: Incident, over: Incident) -> None:
        """Report the end of an incident to the sinks after another coordinator has closed the incident."""
        has_it = self._shown.pop(over.id, None) is not None
        names = ["resolution", "resolved_at", "updated_at", "ending"]
        if over.stalled_seconds is not None:
            names += ["stalled_since", "stalled_seconds"]
        facts = {name: getattr(over, name) for name in names}
        closed = msgspec.structs.replace(before, status="resolved", **facts)
        self._each_sink("adopt", closed)
        for sink in self._sinks:
            if has_it and not (hasattr(sink, "adopt") or getattr(sink, "is_shared", False)):
                with self._guarded("reporting an incident"):
                    sink(closed)

    def _each_sink(self, method: str, *given: Any) -> None:
        """Call the method with this name on each sink that has such a method."""
        for optional in optional_methods(self._sinks, method):
            with self._guarded("reporting an incident"):
                optional(*given)

    def note_shown(self, incident: Incident) -> None:
        """Record an incident that this coordinator or its agent passed to the sinks."""
        with self._lock:
            if incident.status == "resolved":
                self._shown.pop(incident.id, None)
                self._passed_on.pop(incident.id, None)
            else:
                self._shown[incident.id] = incident

    def _present(self) -> float:
        """Return the current time. If this process was suspended for a while, first clear the state.

        During the suspension, another agent merges the run's reports.
        """
        now = self._clock()
        if now - self._present_at > _ABSENT_SECONDS:
            self.leave()
        self._present_at = now
        return now

    @property
    def run(self) -> str:
        """Name of the run, which is empty until an agent has reported."""
        with self._lock:
            return next((agent.report.run for agent in self._agents.values()), "")

    @property
    def is_settled(self) -> bool:
        """Return whether all changes have been reported and all notifications have been sent."""
        with self._lock:
            return not self._episodes.has_news and not self._unsent

    @property
    def is_waiting(self) -> bool:
        """Return whether a change is waiting for reports from hosts that might be gone."""
        with self._lock:
            return self._episodes.has_news and self._absence().is_awaited

    @property
    def is_over(self) -> bool:
        """Return whether no agent is known and all notifications have been sent."""
        with self._lock:
            return not self._agents and not self._unsent

    @property
    def is_known(self) -> bool:
        """Return whether the other running agents know everything that they need to continue.

        One of these agents becomes the next coordinator. Every agent must know the open incidents, the
        failures that might affect other hosts later, and the incidents that include its own incidents.
        Otherwise, these incidents would be reported again. Every agent must also know which hosts have ended
        or were replaced. Otherwise, these hosts would count as lost.
        """
        with self._lock:
            now = self._clock()
            others = [each for each in self._agents.values() if each.report.agent != self.name]
            up = [each for each in others if each.report.ending is None and not each.is_silent(now)]
            ended = {each.host for each in self._agents.values()} - self._going().keys()
            return all(ended.isdisjoint(each.answered_hosts) for each in up) and all(
                (incident.id, incident.status) in each.answered
                for each in up
                for incident in self._ledger.values()
                if incident.status == "open"
                or incident.kind == "ended"
                or incident.outlasted
                or each.has_part_in(incident)
            )

    def _count_hosts(self, missed: Absence, now: float) -> None:
        there = [agent for agent in self._up() if agent.report.ending is None]
        if not there:
            return
        silent = {agent.report.host_id for agent in there if agent.is_silent(now)}
        reporting = {agent.report.host_id for agent in there} - silent
        self._hosts(missed.expected, len(reporting), len(silent))

    def _look(self, agent: KnownAgent, now: float) -> None:
        quiet = now - agent.at
        if agent.report.ending is None:
            if quiet > _LOST_SECONDS and not agent.lost:
                agent.lost = True
                self._slowness.leave(agent.report.agent, agent.host)
            if not agent.closed and self._is_given_up(agent.at, now):
                self._close_left(agent)
        if quiet > (_FORGET_SECONDS if agent.report.ending is None else KEPT_SECONDS):
            del self._agents[agent.report.agent]
            self._named = {each.host: each.report.host_id for each in self._agents.values()}

    def _note_progress(self, now: float) -> None:
        """Record the start of the period in which at least one host makes progress or has ended its part.

        After a pause of more than a minute, a new period starts, because the pause might have been a hang.
        """
        continues = any(
            agent.report.ending is not None
            or not (agent.is_silent(now) or is_quiet(agent.report.quiet, agent.report.threshold))
            for agent in self._agents.values()
        )
        if continues and now - self._progressed_at > _LOST_SECONDS:
            self._progressing_since = now
        self._progressed_at = now if continues else self._progressed_at
        self._progressing = continues

    def _is_given_up(self, reported_at: float, now: float) -> bool:
        """Return whether a silent host counts as lost, so that its open incidents can be closed.

        The host counts as lost if, for some time, the run has made progress or has ended on other hosts. If
        all hosts are quiet, the silent host might only be disconnected, and might be the last host to post
        when the run continues. After a long time without a post, the host counts as lost in any case.
        """
        since = max(reported_at, self._progressing_since)
        return now - reported_at > _FORGET_SECONDS or (self._progressing and now - since > _LOST_SECONDS)

    def _close_left(self, agent: KnownAgent) -> None:
        """Close the incidents that were still open when their agent was lost."""
        agent.closed = True
        for incident in agent.report.incidents:
            if incident.status == "open":
                self._close(in_run(incident, agent.report.agent, agent.host, agent.ahead))

    # ---- incidents

    def _report(self, incident: Incident) -> None:
        for sink in self._sinks:
            with self._guarded("reporting an incident"):
                sink(msgspec.structs.replace(incident))
        self._unsent[incident.id] = incident
        self.note_shown(incident)
        if incident.status == "resolved":
            for other, opened_at in self._episodes.further_ids(incident).items():
                self._report(msgspec.structs.replace(incident, id=other, opened_at=opened_at))

    def _adopt(self, known: Incident) -> None:
        """Add an incident that another coordinator has already reported to users."""
        ago = self._wall() - known.resolved_at if known.resolved_at is not None else 0.0
        if known.id in self._unsent or self._has(known) or not self._episodes.adopt(known, ago):
            return
        self._ledger[known.id] = known
        self._adopted_at.setdefault(known.id, self._clock())
        if known.status == "resolved" and known.id in self._shown:  # another coordinator closed the incident
            self._conclude(self._shown[known.id], known)
        else:
            self._each_sink("adopt", known)

    def _has(self, known: Incident) -> bool:
        before = self._ledger.get(known.id)
        if before is None or (before.status, before.severity) != (known.status, known.severity):
            return False
        return set(known.aliases) <= set(before.aliases)

    def _note_sent(self) -> None:
        has_sent = optional_methods(self._sinks, "has_sent")
        for name, incident in list(self._unsent.items()):
            if all(sent(name) for sent in has_sent):
                del self._unsent[name]
                self._ledger[name] = in_brief(incident)
        self._ledger = kept_ledger(self._ledger.values(), self._wall())
        self._adopted_at = {name: at for name, at in self._adopted_at.items() if name in self._ledger}

    def _close_orphans(self, now: float) -> None:
        """Close the open incidents that no agent has reported since they were adopted."""
        for name, known in list(self._ledger.items()):
            if self._is_given_up(self._adopted_at.get(name, now), now) and self._episodes.awaits(name):
                self._close(known)

    def _close(self, known: Incident) -> None:
        at = self._wall()
        over = {"status": "resolved", "resolution": "unknown", "resolved_at": at, "updated_at": at}
        self._episodes.take(msgspec.structs.replace(known, **over))

    # ---- the run as a whole

    def _view(self) -> View:
        now = self._clock()
        up = [agent for agent in self._up() if agent.report.ending is None]
        silent = self._silent(now)
        seen = [(agent.host, agent.stacks(now)) for agent in up if not agent.is_silent(now)]
        parts = by_host((host, stacks) for host, stacks in seen if stacks is not None)
        world = max((agent.report.world for agent in up), default=0)
        known = self._ranks(up)
        stacks: StallStacks | None = None
        if len(up) > 1 and parts:
            stacks = of_odd_ranks(over_hosts(parts, silent=silent, world=world, ranks=known))
        elif not silent:  # only one agent reports, for example, because the other hosts reject its posts
            stacks = next(iter(parts.values()), None)
        hosts = {rank: host for host, (ranks, _) in self._absent.items() for rank in ranks_in(ranks)}
        hosts |= {rank: agent.host for agent in up for rank in agent.ranks}
        return View(stacks, hosts, self._absence())

    def _absence(self) -> Absence:
        absent = {host: since for host, (_, since) in self._absent.items()}
        agents, now, wall = self._up(), self._clock(), self._wall()
        return absence(agents, absent, self._given, self._newest_at, now, wall)

    def _ruling(self, now: float) -> Ruling | None:
        """Return the joint ruling of all hosts on the current quiet period."""
        up = [agent for agent in self._up() if agent.report.ending is None]
        if len(up) < 2 or not any(is_quiet(agent.report.quiet, agent.report.threshold) for agent in up):
            return None
        views = [
            HostView(
                agent.host,
                agent.report.ruling,
                agent.report.quiet + now - agent.at,
                agent.report.threshold,
                agent.stacks(now),
            )
            for agent in up
            if not agent.is_silent(now)
        ]
        world = max((agent.report.world for agent in up), default=0)
        return run_ruling(views, silent=self._silent(now), world=world, ranks=self._ranks(up))

    def _ranks(self, agents: Iterable[KnownAgent]) -> dict[str, str]:
        """Return the folded ranks, such as ``0-7``, for each host of `agents` and for each absent host."""
        found: dict[str, list[str]] = {}
        for agent in agents:
            found.setdefault(agent.host, []).append(agent.report.ranks)
        absent = {host: ranks for host, (ranks, _) in self._absent.items()}
        return absent | {host: ",".join(filter(None, ranks)) for host, ranks in found.items()}

    def _going(self) -> dict[str, str]:
        """Return the folded ranks for each host that has not ended and that no other host has replaced."""
        return self._ranks(agent for agent in self._up() if agent.report.ending is None)

    def _silent(self, now: float) -> list[str]:
        silent = {agent.host for agent in self._up() if agent.is_silent(now)}
        beat = min((agent.beat for agent in self._agents.values()), default=BEAT_SECONDS)
        limit = max(SILENT_BEATS * beat, LEAST_SILENT)
        return sorted(silent | {host for host, (_, since) in self._absent.items() if now - since > limit})

    def _note_absent(self, hosts: Mapping[str, str], now: float) -> None:
        """Record hosts that an agent knows about but that have not posted to this coordinator."""
        present = {agent.host for agent in self._agents.values()}
        for host in present & self._absent.keys():
            del self._absent[host]
        for host in hosts.keys() - present:
            if len(self._absent) < _MOST_ABSENT:
                self._absent.setdefault(host, (hosts[host], now))

    def _drop_replaced(self) -> None:
        """Remove the absent hosts whose ranks are running on other hosts."""
        taken = {rank for agent in self._agents.values() for rank in agent.ranks} if self._absent else set()
        for host, (ranks, _) in list(self._absent.items()):
            if not taken.isdisjoint(ranks_in(ranks)):
                del self._absent[host]

    def _up(self) -> list[KnownAgent]:
        """Return the agents. If several agents claim the same rank, return only the newest of them."""
        claims: dict[int, list[KnownAgent]] = {}
        for agent in self._agents.values():
            for rank in agent.ranks:
                claims.setdefault(rank, []).append(agent)
        older: set[str] = set()
        for rank, agents in claims.items():
            if len(agents) > 1:
                newest = min(agents, key=lambda agent: agent.report.started_age + self._clock() - agent.at)
                older |= {agent.report.agent for agent in agents if agent is not newest}
                if rank not in self._claimed and sum(agent.report.ending is None for agent in agents) > 1:
                    self._claimed.add(rank)
                    names = " and ".join(sorted({agent.host for agent in agents}))
                    self._notice(
                        f"several agents (on {names}) report rank {rank}; "
                        "only the agent that started last counts"
                    )
        return [agent for agent in self._agents.values() if agent.report.agent not in older]

    def _name_of(self, report: AgentReport) -> str:
        """Return the name of the host, followed by its address or ID if another host has the same name."""
        where, _ = split_address(report.address)
        name = report.host
        for more in (where, report.host_id):
            if self._named.get(name, report.host_id) == report.host_id:
                break
            name = f"{report.host}-{more or report.host_id}"
        if name != report.host and name not in self._named:
            self._notice(
                f"two hosts of the run have the name {report.host}; one of them is called {name} from now on"
            )
        self._named[name] = report.host_id
        return name

    def _is_complete(self) -> bool:
        now = self._clock()
        there = [agent for agent in self._agents.values() if agent.report.ending is None]
        behind = any(agent.at < self._newest_at and not agent.is_silent(now) for agent in there)
        return not behind and len(self._agents) >= self._expected()

    def _expected(self) -> int:
        return max(self._given, len(self._agents))

    @property
    def _given(self) -> int:
        """Number of agents in the run, as set by the scheduler or the launcher, or 0 if unknown."""
        return max((agent.report.expected or 0 for agent in self._agents.values()), default=0)

    # ---- replies

    @property
    def _least_beat(self) -> float:
        hosts = len(self._shared.hosts) if self._shared is not None else 1
        return min(_SLOWEST, max(QUIET_BEAT_SECONDS, hosts / _PER_SECOND))

    def _reply(self, agent: KnownAgent, now: float) -> Reply:
        shared = self._shared
        if shared is None or now - self._shared_at >= max(_SHARED_SECONDS, len(shared.hosts) / _PER_SECOND):
            hosts = self._going()
            for host, (_, since) in self._absent.items():
                if now - since >= _FORGET_SECONDS:
                    del hosts[host]
            members = self._members()
            shared = Reply(
                coordinator=self.name,
                members=members,
                hosts=self._same(hosts),
                names={
                    each.report.host_id: each.host
                    for each in self._agents.values()
                    if each.host != each.report.host
                },
                ruling=self._ruling(now),
                escalates=self._escalates(),
            )
            self._shared, self._shared_at, self._members_digest = shared, now, digest_of(members)
        agent.answered = frozenset((incident.id, incident.status) for incident in self._ledger.values())
        agent.answered_hosts = shared.hosts
        return msgspec.structs.replace(
            shared,
            acknowledged={agent.report.agent: agent.report.number},
            beat=self._least_beat,
            members=None if agent.report.members == self._members_digest else shared.members,
            ledger=list(self._ledger.values()),
        )

    def _escalates(self) -> list[str]:
        predicates = optional_methods(self._sinks, "escalates")
        return [name for name in self._ledger if any(escalates(name) for escalates in predicates)]

    def _same(self, hosts: dict[str, str]) -> dict[str, str]:
        """Return the mapping from the last replies if it equals `hosts`, or `hosts` otherwise.

        The replies to all agents can then share one copy.
        """
        known = self._shared.hosts if self._shared is not None else {}
        return known if hosts == known else hosts

    def _members(self) -> list[Member]:
        there = [agent.report for agent in self._agents.values() if agent.report.ending is None]
        found = {
            report.host_id: Member(report.host_id, report.host, report.address, report.node)
            for report in there
            if report.address
        }
        return sorted(
            found.values(), key=lambda member: (member.node is None, member.node or 0, member.host_id)
        )
