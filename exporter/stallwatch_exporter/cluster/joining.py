"""Connect an agent to its run: create its member, its coordinator, and the transport for its reports.

If the environment and the command do not identify the run, the environment of the first ranks might
identify it.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from stallwatch_exporter import steady
from stallwatch_exporter.cluster.backing import Backing, Merges
from stallwatch_exporter.cluster.coordinator import Coordinator
from stallwatch_exporter.cluster.host import host_id
from stallwatch_exporter.cluster.identity import RunIdentity, with_ranks
from stallwatch_exporter.cluster.member import Member
from stallwatch_exporter.incident import Incident, Sink
from stallwatch_exporter.runs.runfolder import RunFolder
from stallwatch_exporter.serving.metrics import RunMetrics
from stallwatch_exporter.settings import ExporterSettings
from stallwatch_exporter.stacks.local_ranks import rank_environ

#: Function that opens a transport other than HTTP, such as PostgreSQL. While this agent merges the reports,
#: such a transport itself calls `Merges.step`.
Engine = Callable[[RunIdentity, Merges, str], Backing]
_ENGINE_SECONDS = 8.0  # seconds without a response after which the merging agent counts as lost


class Joining:
    """Make this agent a member of its run, immediately or when its ranks show that there are other hosts."""

    def __init__(
        self,
        identity: RunIdentity | None,
        folder: RunFolder,
        settings: ExporterSettings,
        sinks: Sequence[Sink],
        *,
        notice: Callable[[str], None],
        metrics: RunMetrics,
        engine: Engine | None = None,
        ranks_may_say: bool = True,
    ) -> None:
        """If `identity` is known, join the run immediately.

        `ranks_may_say` is true if agents on other hosts can also identify the run from their ranks.
        """
        self._identity = identity
        self._folder = folder
        self._settings = settings
        self._sinks = sinks
        self._notice = notice
        self._metrics = metrics
        self._engine = engine
        self._host = socket.gethostname()
        self._host_id = host_id(self._host)
        self._agent = f"{self._host_id}-{os.getpid()}-{int(steady.wall(steady.now()))}"
        self._known: set[int] = set()  # IDs of processes that have been inspected
        is_off = settings.join.mode == "off"
        self._settled = is_off or not (ranks_may_say if identity is None else identity.provisional)
        self.member = None if identity is None or is_off else self._join(identity)

    def look(self, pids: Iterable[int]) -> Member | None:
        """Join the run that one of these rank processes identifies. Return the new member for this agent.

        Return ``None`` if no process identifies a run, or if the run is already known. Each process is
        inspected only once.
        """
        if self._settled:
            return None
        for pid in sorted(set(pids) - self._known):
            self._known.add(pid)
            identity = with_ranks(self._identity, rank_environ(pid))
            if identity is not None and identity is not self._identity:
                self._settled = True
                self.member = self._join(identity)
                names = ("key", "job", "node", "attempt", "agents")
                self._folder.write_info(**{name: getattr(identity, name) for name in names})
                return self.member
        return None

    def _join(self, identity: RunIdentity) -> Member:
        self._folder.info.agent = self._agent
        coordinator = Coordinator(
            [*self._sinks, self._folder.append_run_incident],
            name=self._agent,
            notice=self._notice,
            hosts=self._metrics.hosts,
            slowdown=self._metrics.slowdown,
        )

        def shown(incident: Incident) -> None:
            coordinator.note_shown(incident)
            self._folder.append_run_incident(incident)

        def renamed(name: str) -> None:
            self._host = self._folder.info.host_name = name
            self._metrics.identity(self._folder.info, {})

        member = partial(
            Member,
            identity=identity,
            run=self._folder.run,
            sinks=self._sinks,
            agent=self._agent,
            host=self._host,
            host_id=self._host_id,
            leave=coordinator.leave,
            shown=shown,
            renamed=renamed,
            is_settled=lambda: coordinator.is_settled,
            is_waiting=lambda: coordinator.is_waiting,
            notice=self._notice,
        )
        if self._engine is not None:
            backing = self._engine(identity, coordinator, self._agent)
            return member(backing=backing, alone_seconds=_ENGINE_SECONDS)
        # Import this module late because it loads ssl and zstandard, and most runs have only one host.
        from stallwatch_exporter.cluster.client import HttpBacking

        http = HttpBacking(
            identity,
            self._settings.join,
            self._settings.home,
            coordinator,
            agent=self._agent,
            host_id=self._host_id,
            notice=self._notice,
        )
        return member(
            backing=http,
            address=lambda: http.address,
            step=coordinator.step,
            is_known=lambda: coordinator.is_known,
        )
