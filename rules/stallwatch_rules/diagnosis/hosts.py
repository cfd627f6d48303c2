"""Determine the host of each rank of a run, even if the log of the rank is missing."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from itertools import islice

import msgspec

from stallwatch_rules.diagnosis.findings import Streams
from stallwatch_rules.lines.hosts import HostNumbers, host_in_line, numbers_of
from stallwatch_rules.records import HostRanks
from stallwatch_rules.stream import Key, StreamReading
from stallwatch_rules.text.digest import natural_order

LINES = 40  #: maximum number of lines of a stream that are searched for its host


class RunHosts(msgspec.Struct, frozen=True):
    """The hosts of a run. If the hosts are unknown or the run has only one host, no hosts are stored."""

    of_streams: Mapping[Key, str] = {}
    of_ranks: Mapping[int, str] = {}
    order: HostNumbers | None = None  #: numbering from which the host of a rank without a log is inferred
    ahead: Mapping[str, float] = {}  #: host → seconds by which its clock is ahead, if the offset is relevant

    def __bool__(self) -> bool:
        return bool(self.of_ranks)

    def host(self, rank: int | None) -> str:
        """Return the host of a rank, or an empty string if the host is unknown."""
        if rank is None or not self.of_ranks:
            return ""
        known = self.of_ranks.get(rank, "")
        return known or (self.order.host(rank) if self.order is not None else "")

    def of(self, ranks: Iterable[int]) -> list[str]:
        """Return the hosts of these ranks in natural order. Each host appears once."""
        return sorted({host for rank in ranks if (host := self.host(rank))}, key=natural_order)

    def whole(self, ranks: Collection[int]) -> bool:
        """Return whether these ranks include all known ranks of their hosts."""
        hosts = set(self.of(ranks))
        return bool(hosts) and {rank for rank, host in self.of_ranks.items() if host in hosts} <= set(ranks)

    def records(self, missing: Collection[int] = ()) -> list[HostRanks]:
        """Return the hosts with their ranks, including the ranks in `missing`, which are not in any log."""
        ranks: dict[str, list[int]] = {}
        for rank in sorted({*self.of_ranks, *missing}) if self else ():
            if host := self.host(rank):
                ranks.setdefault(host, []).append(rank)
        logged = set(self.of_ranks.values())
        return [
            HostRanks(host, ranks[host], clock_ahead_seconds=self.ahead.get(host), logged=host in logged)
            for host in sorted(ranks, key=natural_order)
        ]


def hosts_of(streams: Streams, sources: Mapping[str, str], ranks_on: Mapping[int, str]) -> RunHosts:
    """Return the hosts of a run, according to its sources, its lines, and the hosts in `ranks_on`."""
    of_streams = {
        key: host for key, stream in streams.items() if (host := sources.get(key[0]) or _named_by(stream))
    }
    ranks: dict[int, set[str]] = {}
    for (_, rank), host in of_streams.items():
        if rank is not None:
            ranks.setdefault(rank, set()).add(host)
    of_ranks = {rank: hosts.pop() for rank, hosts in ranks.items() if len(hosts) == 1}
    of_ranks = {**ranks_on, **of_ranks}
    if len({*of_streams.values(), *ranks_on.values()}) < 2:
        return RunHosts()
    by_host: dict[str, list[int]] = {}
    for rank, host in of_ranks.items():
        by_host.setdefault(host, []).append(rank)
    return RunHosts(of_streams, of_ranks, numbers_of(by_host))


def _named_by(stream: StreamReading) -> str:
    """Return the host that a stream's lines name as their origin, or an empty string if there is none."""
    if stream.rank is None:
        return ""
    lines = [entry.first for entry in islice(stream.templates.entries.values(), LINES)]
    return next((host for line in lines if (host := line.host or host_in_line(line.text))), "")
