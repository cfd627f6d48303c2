"""Join the run that an agent belongs to: its member, its own coordinator, and what carries reports."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Sequence

from stallwatch_exporter import steady
from stallwatch_exporter.cluster.backing import Backing, Merges
from stallwatch_exporter.cluster.coordinator import Coordinator, HostCounts
from stallwatch_exporter.cluster.host import host_id
from stallwatch_exporter.cluster.identity import RunIdentity
from stallwatch_exporter.cluster.member import ALONE_SECONDS, Member
from stallwatch_exporter.incident import Sink
from stallwatch_exporter.runs.runfolder import RunFolder
from stallwatch_exporter.settings import ExporterSettings

#: Opens another engine than HTTP, such as PostgreSQL; it calls `Merges.step` itself while it is its turn.
Engine = Callable[[RunIdentity, Merges, str], Backing]
_ENGINE_SECONDS = 8.0  # that another agent may take to find that whoever merges is frozen


def join_run(
    identity: RunIdentity,
    folder: RunFolder,
    settings: ExporterSettings,
    sinks: Sequence[Sink],
    *,
    notice: Callable[[str], None],
    hosts: HostCounts,
    slowdown: Callable[[float], None],
    engine: Engine | None = None,
) -> Member:
    """Make this agent a member of the run.

    If it merges, `hosts` gets how many are expected, report, and are silent, and `slowdown` the share of the
    throughput that a slow host costs.
    """
    host = socket.gethostname()
    own_id = host_id(host)
    agent = f"{own_id}-{os.getpid()}-{int(steady.wall(steady.now()))}"
    coordinator = Coordinator(
        [*sinks, folder.append_run_incident], name=agent, notice=notice, hosts=hosts, slowdown=slowdown
    )
    if engine is not None:
        return Member(
            identity,
            folder.run,
            engine(identity, coordinator, agent),
            sinks,
            agent=agent,
            host=host,
            host_id=own_id,
            is_settled=lambda: coordinator.is_settled,
            alone_seconds=_ENGINE_SECONDS,
            notice=notice,
        )
    from stallwatch_exporter.cluster.client import (
        HttpBacking,  # with ssl and zstandard: most runs have one host
    )

    backing = HttpBacking(
        identity, settings.join, settings.home, coordinator, agent=agent, host_id=own_id, notice=notice
    )
    return Member(
        identity,
        folder.run,
        backing,
        sinks,
        agent=agent,
        host=host,
        host_id=own_id,
        address=lambda: backing.address,
        step=coordinator.step,
        leave=coordinator.leave,
        is_settled=lambda: coordinator.is_settled,
        is_known=lambda: coordinator.is_known,
        alone_seconds=ALONE_SECONDS,
        notice=notice,
    )
