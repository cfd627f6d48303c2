"""Manage the incidents about hosts that do not report while the other hosts of the run wait or continue."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

import msgspec

from stallwatch_exporter.cluster.absence import Absence, host_gone, host_missing
from stallwatch_exporter.cluster.known_agent import KnownAgent
from stallwatch_exporter.cluster.merging import qualified
from stallwatch_exporter.cluster.slowness import RUN, earlier_incidents, worst_resolution
from stallwatch_exporter.incident import HOST_GONE, HOST_MISSING, Incident
from stallwatch_exporter.watching.incidents import IncidentManager, IncidentUpdate
from stallwatch_rules.endings import Ending
from stallwatch_rules.records import Primary
from stallwatch_rules.stacks.spans import ranks_in

#: Seconds without a report from a host after which users are notified, even if the other hosts continue.
GONE_SECONDS = 60.0
#: Seconds from the start of the first agent to the notification about hosts that have never reported. This
#: limit is half the time for which torchrun waits for all hosts (torch 2.13,
#: `distributed/elastic/rendezvous/dynamic_rendezvous.py`, `RendezvousTimeout`).
MISSING_SECONDS = 300.0


class AbsentHosts:
    """Open and close the incidents about hosts that do not report while the other hosts wait or continue.

    `change` receives each incident whenever the incident changes.
    """

    def __init__(
        self, change: Callable[[Incident], None], clock: Callable[[], float], wall: Callable[[], float]
    ) -> None:
        self._change = change
        self._clock = clock
        self._wall = wall
        self._book: IncidentManager | None = None
        self._gone: dict[str, float] = {}  # time of the last report of each host in the open incident
        self._ranks: dict[str, Collection[int]] = {}  # last known ranks of these hosts
        self._reported: set[str] = set()  # hosts whose loss is reported by their own incidents

    def look(
        self,
        agents: Collection[KnownAgent],
        missed: Absence,
        ledger: Collection[Incident],
        ranks: Mapping[str, str],
    ) -> None:
        """Update the incidents.

        `ledger` contains the incidents that have been reported to users. `ranks` contains the folded ranks on
        each host of the run, including the hosts that no longer report.
        """
        if not agents:
            return
        now, wall = self._clock(), self._wall()
        if self._book is None:
            run = next(iter(agents)).report.run
            known = earlier_incidents(ledger, HOST_GONE, HOST_MISSING)
            self._book = IncidentManager(run, "", self._changed, known)
            for adopted in self._book.all_open:
                self._gone |= adopted.gone_hosts
                self._changed(adopted)
        up = [agent for agent in agents if agent.host not in missed.gone]
        self._ranks |= {host: ranks_in(ranks[host]) for host in self._gone.keys() & ranks.keys()}
        taken = {rank for agent in up for rank in agent.ranks}
        reporting = {agent.host for agent in up}
        # A host is not gone if another host now has one of its ranks, because the other host replaced it.
        reporting |= {host for host, each in self._ranks.items() if not taken.isdisjoint(each)}
        self._gone = {host: at for host, at in self._gone.items() if host not in reporting}
        self._ranks = {host: each for host, each in self._ranks.items() if host in self._gone}
        if all(agent.report.ending is not None for agent in up):
            return  # no host waits or continues, and `end` closes the incidents
        # At the end of a run, hosts stop one after the other, so a stopped host is not reported.
        if all(agent.report.ending is None for agent in agents) and any(_trains(agent, now) for agent in up):
            lost = {host: at for host, at in missed.gone.items() if wall - at > GONE_SECONDS}
            # The end of a host's own incident already shows users that the host is gone. Remember such hosts,
            # because the incident is known only for a while after its end.
            new = [agent for agent in agents if agent.host in lost.keys() - self._gone.keys()]
            self._reported |= {agent.host for agent in new if _has_own_incident(agent, ledger)}
            self._reported &= lost.keys()
            self._gone = {host: at for host, at in lost.items() if host not in self._reported} | self._gone
        step = max((agent.report.step for agent in up if agent.report.step is not None), default=None)
        self._set(HOST_GONE, host_gone(self._gone) if self._gone else None, step)
        waited = now - min(agent.at - agent.report.started_age for agent in agents)
        waits = missed.missing > 0 and step is None and waited > MISSING_SECONDS
        self._set(HOST_MISSING, host_missing(missed) if waits else None, step)

    def end(self, endings: Iterable[Ending]) -> None:
        """When the run ends, resolve the incidents with the worst ending of any reporting host."""
        self._gone.clear()
        if self._book is not None:
            self._book.resolve_all(self._wall(), worst_resolution(endings))

    def _set(self, rule: str, primary: Primary | None, step: int | None) -> None:
        """Open, update, or close the incident for this rule."""
        assert self._book is not None
        at, incident = self._wall(), self._book.get("finding", rule)
        facts: IncidentUpdate = {"primary": primary}
        if rule == HOST_GONE:
            facts["gone_hosts"] = dict(self._gone)
        if primary is None:
            if incident is not None:
                self._book.resolve(incident, at, "recovered")
        elif incident is None:
            facts["harm"], facts["step"] = "by-progress", step
            self._book.open("finding", rule, "warning", at, **facts)
        else:
            self._book.update(incident, at, **facts)

    def _changed(self, trouble: Incident) -> None:
        host = trouble.primary.host if trouble.primary is not None else ""
        self._change(msgspec.structs.replace(trouble, id=qualified(RUN, trouble), host=host))


def _has_own_incident(agent: KnownAgent, ledger: Iterable[Incident]) -> bool:
    """Return whether the agent reported an open, critical incident that no other host shares."""
    own = {
        qualified(agent.report.agent, incident)
        for incident in agent.report.incidents
        if incident.status == "open" and incident.severity == "critical"
    }
    return not own.issubset(alias for known in ledger if len(known.hosts) > 1 for alias in known.aliases)


def _trains(agent: KnownAgent, now: float) -> bool:
    """Return whether a recent report from the agent shows that its ranks are training."""
    report = agent.report
    return report.phase == "train" and report.step is not None and not agent.is_quiet(now)
