"""Group the ranks of a stalled run by state and mark the ranks whose state deviates (the odd ranks)."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

from msgspec.structs import replace

from stallwatch_rules.stacks.blame import blame
from stallwatch_rules.stacks.rank_activity import RankActivity, activity_of_rank
from stallwatch_rules.stacks.records import (
    Collectives,
    Frame,
    Kind,
    RankAnswer,
    RankGroup,
    StackGroup,
    StallStacks,
)
from stallwatch_rules.stacks.spans import members_of, ranks_in, spans_of

_MOST_FRAMES = 40
_MOST_PROCESSES = 64  # maximum number of odd ranks whose processes are recorded for a run on several hosts


def fold(
    ranks: Sequence[RankAnswer],
    *,
    time: float,
    seconds: float = 0.0,
    doing: Mapping[int, RankActivity] | None = None,
) -> StallStacks:
    """Group the records of `ranks` by state.

    The records were read at `time`, and reading them took `seconds` seconds.

    The activity of a rank is derived from its stack, unless `doing` contains the activity.
    """
    known = doing or {}
    layout = _layout(ranks)
    members = members_of(layout.values())
    groups = [
        _group(rank, known.get(rank.rank) or activity_of_rank(rank), _collectives(rank, layout))
        for rank in sorted(ranks, key=lambda rank: rank.rank)
    ]
    stacks = StallStacks(
        time=time,
        seconds=round(seconds, 3),
        groups=_joined_by_activity(groups, members),
        pids={rank.rank: rank.pid for rank in ranks if rank.pid > 0},
        layout=sorted({group.id: group for group in layout.values()}.values(), key=lambda group: group.id),
    )
    return _with_odd_ranks(stacks, world=max((rank.recorded.world_size for rank in ranks), default=0))


def over_hosts(
    parts: Mapping[str, StallStacks],
    *,
    silent: Sequence[str] = (),
    world: int = 0,
    ranks: Mapping[str, str] | None = None,
) -> StallStacks:
    """Combine the stacks from all hosts of a run into one record.

    `silent` contains the hosts that do not respond. `ranks` maps each known host to its ranks, in the form of
    ``spans_of``. Hosts that have no stacks are included. If two hosts report the same rank, the rank becomes
    a candidate and is omitted from the groups.
    """
    layout: dict[str, RankGroup] = {}
    for part in parts.values():
        for entry in part.layout:
            layout[entry.id] = entry if entry.id not in layout or entry.axis else layout[entry.id]
    reported = {host: [rank for group in part.groups for rank in group.ranks] for host, part in parts.items()}
    times = Counter(rank for ranks in reported.values() for rank in set(ranks))
    twice = sorted(rank for rank, count in times.items() if count > 1)
    groups = [group for part in parts.values() for group in part.groups]
    if twice:
        left = ([rank for rank in group.ranks if times[rank] == 1] for group in groups)
        groups = [replace(group, ranks=ranks) for group, ranks in zip(groups, left, strict=True) if ranks]
    hosts = {host: spans_of(ranks) for host, ranks in sorted(reported.items())}
    hosts.update({host: part.hosts[host] for host, part in parts.items() if host in part.hosts})
    expected = [part.elsewhere + len(reported[host]) for host, part in parts.items()]
    stacks = StallStacks(
        time=max((part.time for part in parts.values()), default=0.0),
        seconds=max((part.seconds for part in parts.values()), default=0.0),
        groups=_joined_by_activity(groups, members_of(layout.values())),
        pids={rank: pid for part in parts.values() for rank, pid in part.pids.items() if times[rank] == 1},
        files={ranks: path for host, part in parts.items() for ranks, path in _files(part, reported[host])},
        layout=sorted(layout.values(), key=lambda entry: entry.id),
        hosts=hosts,
        silent=sorted(silent),
        candidates=twice,
    )
    return _with_odd_ranks(stacks, world=max([world, *expected]), ranks=ranks)


def by_host(looks: Iterable[tuple[str, StallStacks]]) -> dict[str, StallStacks]:
    """Return one `StallStacks` for each host.

    Several agents on a host can each inspect some of its ranks.
    """
    found: dict[str, list[StallStacks]] = defaultdict(list)
    for host, stacks in looks:
        found[host].append(stacks)
    return {
        host: parts[0] if len(parts) == 1 else over_hosts({str(at): part for at, part in enumerate(parts)})
        for host, parts in found.items()
    }


def _files(part: StallStacks, ranks: Iterable[int]) -> Iterable[tuple[str, str]]:
    """Return the files with a host's stacks, in the form of the items of `StallStacks.files`.

    Each file is from one agent.
    """
    if part.file and part.folder:
        return [(spans_of(sorted(ranks)), f"{part.folder}/{part.file}")]
    return part.files.items()


def of_odd_ranks(stacks: StallStacks) -> StallStacks:
    """Return the stacks with process IDs and files for only the odd ranks, to keep the record small."""
    odd = frozenset(stacks.odd[:_MOST_PROCESSES])
    return replace(
        stacks,
        pids={rank: pid for rank, pid in stacks.pids.items() if rank in odd},
        files={ranks: path for ranks, path in stacks.files.items() if not odd.isdisjoint(ranks_in(ranks))},
    )


def _with_odd_ranks(stacks: StallStacks, world: int, ranks: Mapping[str, str] | None = None) -> StallStacks:
    """Mark the odd ranks and return the stacks with the groups of the odd ranks last."""
    known = sum(len(group.ranks) for group in stacks.groups)
    hosts = {**(ranks or {}), **stacks.hosts}
    found = blame(stacks.groups, stacks.layout, world=world, hosts=hosts, silent=stacks.silent)
    odd = frozenset(found.ranks)
    groups = [each for group in stacks.groups for each in _split_odd(group, odd)]
    return replace(
        stacks,
        groups=sorted(groups, key=lambda group: (group.ranks[0] in odd, -len(group.ranks), group.ranks)),
        odd=list(found.ranks),
        why=found.why,
        candidates=sorted({*stacks.candidates, *found.candidates}),
        confidence=found.confidence,
        elsewhere=max(0, world - known),
    )


def _split_odd(group: StackGroup, odd: frozenset[int]) -> list[StackGroup]:
    """If only some of the ranks of a group are odd, split the group into two groups."""
    parts = [[rank for rank in group.ranks if (rank in odd) is wanted] for wanted in (False, True)]
    return [group if ranks == group.ranks else replace(group, ranks=ranks) for ranks in parts if ranks]


def _layout(ranks: Sequence[RankAnswer]) -> dict[tuple[str, int], RankGroup]:
    """Return the process groups with known members. The keys are pairs of a group name and a rank.

    A key contains the rank, because several groups can have the same name.
    """
    groups: dict[tuple[str, tuple[int, ...]], RankGroup] = {}
    found: dict[tuple[str, int], RankGroup] = {}
    for rank in ranks:
        for name, members in rank.recorded.members.items():
            known = groups.get((name, members))
            if known is None or (not known.axis and name in rank.recorded.axes):
                spans = spans_of(members)
                axis = rank.recorded.axes.get(name, "")
                known = groups[name, members] = RankGroup(f"{name}:{spans}", spans, name, axis)
                for member in members:
                    found[name, member] = known
    return found


def _collectives(rank: RankAnswer, layout: Mapping[tuple[str, int], RankGroup]) -> dict[str, Collectives]:
    """For each process group of a rank, return the position of the rank and the pending operation."""
    recorded = rank.recorded
    names = {wait.group: wait.name for wait in recorded.waiting}
    waits = {wait.group: wait for wait in sorted(recorded.waiting, key=lambda wait: wait.number)}
    found = {}
    for number in sorted({*recorded.counts, *waits}):
        name = names.get(number) or recorded.names.get(number, str(number))
        group, wait, counts = layout.get((name, rank.rank)), waits.get(number), recorded.counts.get(number)
        joined = counts.joined if counts is not None else wait.number if wait is not None else 0
        done = counts.done if counts is not None else None
        if done is not None and done < 0:
            # The rank has not joined a collective yet, or does not count completed collectives.
            done = 0 if wait is not None else None
        operation = wait.operation if wait is not None else ""
        found[group.id if group is not None else name] = Collectives(joined, done, operation)
    return found


def _group(rank: RankAnswer, doing: RankActivity, collectives: dict[str, Collectives]) -> StackGroup:
    gone = rank.condition == "ended"
    return StackGroup(
        ranks=[rank.rank],
        kind=_kind(rank, doing),
        condition=rank.condition,
        what="" if gone else doing.what or ("file lock" if rank.lock_holder else ""),
        place="" if gone else doing.place,
        note=rank.lock_holder or (rank.kernel if rank.condition == "blocked" else ""),
        locked_out=rank.locked_out,
        frames=[line(frame) for frame in doing.frames[-_MOST_FRAMES:]],
        worker=rank.worker,
        worker_frames=[line(frame) for frame in rank.worker_frames[-_MOST_FRAMES:]],
        step=rank.step,
        collectives=collectives,
    )


def _kind(rank: RankAnswer, doing: RankActivity) -> Kind:
    """Return the kind of a rank's activity. If the rank runs the user's code, prefer data from the kernel."""
    if rank.lock_holder and doing.kind in ("code", "thread", "unknown"):
        return "lock"
    return "input" if rank.reads_input and doing.kind in ("code", "unknown") else doing.kind


def line(frame: Frame) -> str:
    """Return a frame in the form ``file:line in function``, which is displayed on its own line."""
    return f"{frame.file}:{frame.line} in {frame.function}"


def _joined_by_activity(
    groups: Iterable[StackGroup], members: Mapping[str, Sequence[int]]
) -> list[StackGroup]:
    """Join groups with the same activity if their counts are equal in every process group that they share.

    The result does not depend on the previous grouping of the ranks.
    """
    alike: dict[tuple[object, ...], list[StackGroup]] = defaultdict(list)
    for group in groups:
        key = (group.kind, group.condition, group.what, group.place, group.note, group.step)
        alike[key].append(group)
    found = [each for some in alike.values() for each in _joined_by_counts(some, members)]
    counted = _group_with_most_spread(found)
    for group in found:
        count = group.collectives.get(counted)
        group.collective = count.joined if count is not None else None
    return found


def _joined_by_counts(groups: Sequence[StackGroup], members: Mapping[str, Sequence[int]]) -> list[StackGroup]:
    """Join groups with the same activity, except for groups whose counts differ in a process group."""
    far: dict[str, Collectives] = {}
    split = {
        id
        for group in groups
        for id, count in group.collectives.items()
        if far.setdefault(id, count) != count
    }
    if not split:
        return [_joined_groups(groups)]
    here = {id: frozenset(members[id]) for id in split if id in members}
    numbers: dict[str, Counter[Collectives]] = defaultdict(Counter)
    for group in groups:
        for id in split & group.collectives.keys():
            number = len(here[id].intersection(group.ranks)) if id in here else len(group.ranks)
            numbers[id][group.collectives[id]] += number
    usual = {
        id: max(counts.items(), key=lambda item: (item[1], repr(item[0])))[0]
        for id, counts in numbers.items()
    }
    parts: dict[frozenset[tuple[str, Collectives]], list[StackGroup]] = defaultdict(list)
    for group in groups:
        # Ranks with the usual count in a process group remain together with ranks outside this process group.
        special = [(id, count) for id, count in group.collectives.items() if usual.get(id, count) != count]
        if not special or len(group.ranks) == 1:
            parts[frozenset(special)].append(group)
            continue
        by_rank: dict[frozenset[tuple[str, Collectives]], list[int]] = defaultdict(list)
        for rank in group.ranks:
            counts_of_rank = frozenset(item for item in special if rank in here.get(item[0], group.ranks))
            by_rank[counts_of_rank].append(rank)
        for key, ranks in by_rank.items():
            parts[key].append(_part_of(group, ranks, members))
    return [_joined_groups(some) for some in parts.values()]


def _part_of(group: StackGroup, ranks: list[int], members: Mapping[str, Sequence[int]]) -> StackGroup:
    these = frozenset(ranks)
    collectives = {
        id: count
        for id, count in group.collectives.items()
        if id not in members or not these.isdisjoint(members[id])
    }
    return replace(group, ranks=ranks, collectives=collectives)


def _joined_groups(groups: Sequence[StackGroup]) -> StackGroup:
    """Join groups into one group, which shows the activity of the lowest rank."""
    first = min(groups, key=lambda group: group.ranks[0])
    collectives: dict[str, Collectives] = {}
    for group in groups:
        collectives.update(group.collectives)
    ranks = sorted(rank for group in groups for rank in group.ranks)
    return replace(first, ranks=ranks, collectives=dict(sorted(collectives.items())))


def _group_with_most_spread(groups: Sequence[StackGroup]) -> str:
    """Return the process group in which the ranks' counts differ most, or "" if the counts are equal."""
    counts: dict[str, list[int]] = defaultdict(list)
    for group in groups:
        for id, count in group.collectives.items():
            counts[id].append(count.joined)
    spread = {id: max(joined) - min(joined) for id, joined in counts.items()}
    widest = max(sorted(spread), key=lambda id: spread[id], default="")
    return widest if spread.get(widest) else ""
