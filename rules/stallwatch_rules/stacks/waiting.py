"""Build the wait-for graph of a run. The graph shows which ranks each rank waits for."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property
from itertools import pairwise

import msgspec

from stallwatch_rules.stacks.records import Collectives, RankGroup, StackGroup
from stallwatch_rules.stacks.spans import MOST_RANKS, members_of, ranks_in

ANYBODY, UNKNOWN = -1, -2  #: special nodes: any rank that does not wait, and ranks that did not report
Role = str | tuple[int, ...]  #: purpose of a process group: its axis, or its shape if the group has no axis

_FEW = 0.25  # maximum share of all ranks in a small minority
_WAITS = ("collective", "joining")
_PASSES = ("send", "recv", "p2p")  # parts of the names of operations between two pipeline stages


class Run:
    """The ranks of a run, grouped by state, and information about these ranks."""

    def __init__(
        self,
        groups: Sequence[StackGroup],
        layout: Sequence[RankGroup],
        world: int,
        hosts: Mapping[str, str],
        silent: Sequence[str],
    ) -> None:
        self.groups = [group for group in groups if group.ranks]
        self.owner = {rank: at for at, group in enumerate(self.groups) for rank in group.ranks}
        self.members: dict[str, Sequence[int]] = {**members_of(layout)}
        known = [group for group in layout if group.id in self.members]
        self.roles: dict[str, Role] = {
            group.id: group.axis or _shape(self.members[group.id]) for group in known
        }
        self.pipelines = [self.members.get(group.id, ()) for group in layout if group.axis == "pp"]
        #: True if there are several kinds of groups. In this case, ranks can wait in different groups.
        self.mixed = len({group.axis for group in layout if group.axis not in ("", "world", "dp")}) > 0
        #: IDs of the groups whose members are unknown. Any rank that has no counters can be a member.
        self.open = {id for group in self.groups for id in group.collectives} - self.members.keys()
        for id in self.open:
            some = (each.ranks for each in self.groups if id in each.collectives or not each.collectives)
            self.members[id] = [rank for ranks in some for rank in ranks]
        named = {rank for host in silent for rank in ranks_in(hosts.get(host, ""))}
        expected = named.union(range(min(world, MOST_RANKS)), *self.members.values())
        self.unreported = expected - self.owner.keys()
        if all(hosts.get(host) for host in silent):
            self.silent = named - self.owner.keys()
        else:
            seen = {rank for host, spans in hosts.items() if host not in silent for rank in ranks_in(spans)}
            self.silent = self.unreported - seen
        self.is_silent = bool(silent)

    @cached_property
    def counts(self) -> dict[int, list[tuple[str, int]]]:
        """For each rank, the number of collectives that it has joined in each of its process groups."""
        found: dict[int, list[tuple[str, int]]] = defaultdict(list)
        for id, ranks in self.members.items():
            for rank in ranks:
                if (count := self.count(rank, id)) is not None:
                    found[rank].append((id, count.joined))
        return found

    def count(self, rank: int, id: str) -> Collectives | None:
        """Return the position of a rank in a process group, or ``None`` if the position is unknown."""
        at = self.owner.get(rank)
        return self.groups[at].collectives.get(id) if at is not None else None

    @cached_property
    def passing(self) -> list[Sequence[int]]:
        """The pipelines of the run. The ranks of each pipeline are in the order of its stages.

        If the groups have no axes, kinds of groups with a pending collective or with different counts are
        excluded. Of the other groups, the pipelines are those with the largest distance between ranks,
        because frameworks (Megatron-LM, DeepSpeed, and torch meshes) place the stages of a pipeline farthest
        apart.
        """
        if self.pipelines:
            return self.pipelines
        like: dict[tuple[int, ...], list[Sequence[int]]] = defaultdict(list)
        for id, role in self.roles.items():
            if isinstance(role, tuple) and 1 < len(self.members[id]) < len(self.owner):
                like[role].append(self.members[id])
        used: set[Role | None] = set()
        first: dict[str, int] = {}
        for id, count in ((id, count) for group in self.groups for id, count in group.collectives.items()):
            pending = count.operation or (count.done is not None and count.done < count.joined)
            if pending or first.setdefault(id, count.joined) != count.joined:
                used.add(self.roles.get(id))
        idle = [role for role in like if role not in used]
        return like[max(idle)] if idle else []

    def waits(self, at: int) -> bool:
        group = self.groups[at]
        return group.kind in _WAITS and group.condition in ("alive", "blocked")

    def is_minority(self, ranks: Collection[int], share: float = _FEW) -> bool:
        return len(ranks) <= share * len(self.owner)


class Split(msgspec.Struct):
    """A process group whose ranks have joined different numbers of collectives."""

    id: str
    late: set[int]
    ahead: set[int]


class WaitGraph:
    """The wait-for graph of a run.

    Ranks have edges to the collectives in which they wait. Collectives, whose node numbers are negative, have
    edges to the ranks that have not joined.
    """

    def __init__(self, run: Run) -> None:
        self.run = run
        self.edges: dict[int, list[int]] = defaultdict(list)
        self.missed: set[int] = set()  # ranks for which, according to the counters, other ranks wait
        self.splits: list[Split] = []
        # Ranks that certainly wait in a collective, because its operation or their number of completed
        # collectives is known.
        self.visible: set[int] = set()
        self._nodes = UNKNOWN
        for id, ranks in run.members.items():
            self._add_group(id, ranks)
        free = [
            rank
            for at, group in enumerate(run.groups)
            if group.condition != "ended" and not run.waits(at)
            for rank in group.ranks
            if not self.edges.get(rank)
        ]
        self._add_uncounted(bool(free))
        self.edges[ANYBODY] = free

    def _add_group(self, id: str, ranks: Sequence[int]) -> None:
        run = self.run
        here: dict[int, list[int]] = defaultdict(list)
        for rank in ranks:
            if (at := run.owner.get(rank)) is not None:
                here[at].append(rank)
        counts = {at: run.groups[at].collectives[id] for at in here if id in run.groups[at].collectives}
        if not counts:
            return
        levels: dict[int, list[int]] = defaultdict(list)
        for at, count in counts.items():
            levels[count.joined].append(at)
        # If a rank that has no counters does not wait, it has not joined the collective. If it waits, it can
        # be waiting in this group.
        late = [rank for at in here if at not in counts and not run.waits(at) for rank in here[at]]
        missing = bool(run.unreported) if id in run.open else sum(map(len, here.values())) < len(ranks)
        before: int | None = None
        passed: set[int] = set(late)
        for joined in sorted(levels):
            pending = [at for at in levels[joined] if self._may_wait(at, counts[at])]
            if passed:
                self._nodes -= 1
                node = self._nodes
                self.edges[node] = late if before is None else [*late, before]
                before, late = node, []
                for at in pending:
                    for rank in here[at]:
                        self.edges[rank].append(node)
                if pending:
                    self.missed |= passed
            for at in pending:
                if counts[at].operation or counts[at].done is not None:
                    self.visible.update(here[at])
                if missing:
                    for rank in here[at]:
                        self.edges[rank].append(UNKNOWN)
            here_now = [rank for at in levels[joined] for rank in here[at]]
            late = [*late, *here_now]
            passed.update(here_now)
        if len(levels) > 1:
            ahead = {rank for at in levels[max(levels)] for rank in here[at]}
            self.splits.append(Split(id, passed - ahead, ahead))

    def _may_wait(self, at: int, count: Collectives) -> bool:
        """Return whether the ranks of a group might be waiting for a collective of this process group."""
        if count.operation or (count.done is not None and count.done < count.joined):
            return self.run.groups[at].condition in ("alive", "blocked")
        return count.done is None and self.run.waits(at)

    def _add_uncounted(self, any_rank: bool) -> None:
        """Add edges for ranks that have no counters: to adjacent stages, or to all ranks that do not wait."""
        run, stages = self.run, None
        for at, group in enumerate(run.groups):
            if not run.waits(at):
                continue
            if is_pipeline_transfer(group.what):
                stages = _neighbours(run.passing) if stages is None else stages
                for rank in group.ranks:
                    beside = stages.get(rank, ())
                    self.edges[rank] += (other if other in run.owner else UNKNOWN for other in beside)
                    if not beside and any_rank:
                        self.edges[rank].append(ANYBODY)
                    if not beside and run.unreported:
                        self.edges[rank].append(UNKNOWN)
                continue
            for rank in group.ranks:
                if rank in self.visible or any(node != UNKNOWN for node in self.edges.get(rank, ())):
                    continue
                if any_rank:
                    self.edges[rank].append(ANYBODY)
                if run.unreported:
                    self.edges[rank].append(UNKNOWN)

    def ends(self) -> set[int]:
        """Return the nodes for which other nodes wait and that do not wait for any node themselves."""
        targets = {node for rank, others in self.edges.items() if rank >= 0 for node in others}
        waited_for = _reachable(targets, self.edges)
        return {node for node in waited_for if not self.edges.get(node)}

    def ranks_in_circles(self) -> set[int]:
        """Return the ranks in cycles from which no path leads to nodes outside the cycle."""
        waiters: dict[int, list[int]] = defaultdict(list)
        for node, others in self.edges.items():
            for other in others:
                waiters[other].append(node)
        found: set[int] = set()
        done: set[int] = set()  # nodes whose paths end in a known cycle
        for start in self.edges:
            if start in done:
                continue
            outside = {start}
            while outside:
                node = outside.pop()
                reached = _reachable([node], self.edges)
                leading = _reachable([node], waiters, done)
                outside = reached - leading  # no path leads back from these nodes to the current node
            done |= leading
            if len(reached) > 1:
                found |= reached
        return {node for node in found if node >= 0}


def _reachable(
    starts: Iterable[int], edges: Mapping[int, Iterable[int]], excluded: Collection[int] = ()
) -> set[int]:
    found = set(starts)
    new = list(found)
    while new:
        others = [node for node in edges.get(new.pop(), ()) if node not in found and node not in excluded]
        found.update(others)
        new += others
    return found


def _shape(ranks: Sequence[int]) -> tuple[int, ...]:
    """Return the stride, extent, and number of ranks. Groups of the same kind have the same values."""
    return (ranks[1] - ranks[0], ranks[-1] - ranks[0], len(ranks)) if len(ranks) > 1 else (0, 0, len(ranks))


def is_pipeline_transfer(what: str) -> bool:
    """Return whether an operation transfers data between two pipeline stages."""
    return any(part in what.lower() for part in _PASSES)


def _neighbours(pipelines: Iterable[Sequence[int]]) -> dict[int, list[int]]:
    """Return, for each rank, the ranks of the previous and the next pipeline stage."""
    found: dict[int, list[int]] = defaultdict(list)
    for stages in pipelines:
        for stage, following in pairwise(stages):
            found[stage].append(following)
            found[following].append(stage)
    return found
