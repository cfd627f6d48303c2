"""Determine which ranks of a run hold up the other ranks, and why.

The states of the ranks can come from any source.

The ranks and the collectives of their process groups form a wait-for graph. A rank in a collective waits for
the members of the process group that joined fewer collectives of this group. In a pipeline, a rank waits for
the adjacent stages. If no rank counts collectives, a waiting rank waits for the ranks that do not wait. In a
stall, most ranks are victims. The ranks at the ends of all paths wait for no other rank, so they hold up the
run. If the paths end in a cycle, ranks took different code paths. In this case, the suspects are the ranks
that contradict the largest number of other ranks.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import msgspec
from msgspec.structs import replace

from stallwatch_rules.stacks.records import RankGroup, StackGroup, Why
from stallwatch_rules.stacks.spans import ranks_in, spans_of
from stallwatch_rules.stacks.waiting import UNKNOWN, Role, Run, Split, WaitGraph, is_pipeline_transfer

#: Confidence if the counters and the stacks of the ranks agree, or if the kernel reports the cause.
AGREED = 0.97
COUNTED = 0.92  #: confidence if only the counters of the ranks show the cause

#: Confidence if the cause follows from a small minority of stacks, completed collectives, or a cycle.
STACKS = 0.8
SILENT = 0.85  #: maximum confidence if a host does not respond
UNSURE = 0.6  #: maximum confidence if two sides have the same number of ranks, or if some ranks are unknown
_ONE_HOST = 16  # maximum number of ranks that usually form a single parallel group

# Kinds of activity in which a rank waits for something other than a rank.
_OUTSIDE = ("joining", "load", "save", "lock", "network", "data")
_GONE: tuple[Literal["ended", "stopped"], ...] = ("ended", "stopped")


class Blame(msgspec.Struct, frozen=True):
    """The ranks that hold up the run, and the reason.

    `ranks` is empty if no rank holds up the run, or if the ranks that hold up the run are unknown.
    """

    ranks: tuple[int, ...] = ()
    why: Why = ""
    candidates: tuple[int, ...] = ()  #: if `ranks` is empty, ranks that might include the culprit
    confidence: float = 0.0


def blame(
    groups: Sequence[StackGroup],
    layout: Sequence[RankGroup],
    *,
    world: int = 0,
    hosts: Mapping[str, str] | None = None,
    silent: Sequence[str] = (),
) -> Blame:
    """Determine which ranks hold up the run, and why.

    `world` is the number of ranks in the run, or 0 if this number is unknown. `hosts` maps each host to its
    ranks, in the form of ``spans_of``. `silent` contains the hosts that do not respond.
    """
    run = Run(groups, layout, world, hosts or {}, silent)
    found = _by_condition(run) or _by_waiting(run)
    if found.why == "unreachable":
        found = _contradiction(run, layout) or found
    if not found.confidence:
        return found
    most = UNSURE if run.unreported - run.silent else SILENT if silent else 1.0
    return replace(found, confidence=min(found.confidence, most))


def _by_condition(run: Run) -> Blame | None:
    """Blame ranks whose processes ended or were stopped, as reported by the kernel.

    Return ``None`` if the states of the processes do not explain the stall.
    """
    conditions = {group.condition for group in run.groups}
    if not run.groups:
        return Blame(tuple(sorted(run.silent)), "unreachable", (), UNSURE) if run.is_silent else Blame()
    if not run.unreported and len(run.owner) > 1:
        if conditions == {"stopped"}:
            return Blame((), "frozen", (), AGREED)
        if conditions == {"blocked"}:
            return Blame((), "outside", (), STACKS)
    for why in _GONE:
        if why in conditions and len(conditions) > 1:
            found = [rank for group in run.groups if group.condition == why for rank in group.ranks]
            if why == "ended" and run.silent and 2 * len(found) > len(run.owner):
                # The launcher ended these ranks because it lost the connection to the unresponsive host.
                return Blame(tuple(sorted(run.silent)), "unreachable", (), SILENT)
            return Blame(tuple(sorted(found)), why, (), AGREED)
    return None


def _contradiction(run: Run, layout: Sequence[RankGroup]) -> Blame | None:
    """Blame ranks that took a different path than other ranks. Ranks on unresponsive hosts are ignored.

    An unresponsive host can make ranks wait but cannot make the responding ranks contradict each other.
    Ranks that wait for an adjacent pipeline stage are not blamed, because that stage might be on such a host.
    """
    known = run.owner.keys()
    reduced = (replace(group, ranks=spans_of(sorted(known & ranks_in(group.ranks)))) for group in layout)
    found = _by_waiting(Run(run.groups, [group for group in reduced if group.ranks], 0, {}, ()))
    passes = any(is_pipeline_transfer(run.groups[run.owner[rank]].what) for rank in found.ranks)
    return found if found.why == "diverged" and found.confidence >= STACKS and not passes else None


def _by_waiting(run: Run) -> Blame:
    waiting = [at for at in range(len(run.groups)) if run.waits(at)]
    graph = WaitGraph(run)
    ends = graph.ends()
    ranks = {node for node in ends if node >= 0}
    busy = {rank for rank in ranks if not run.waits(run.owner[rank])}
    if busy:
        return _not_waiting(run, busy, graph.missed, others_wait=bool(waiting))
    if ranks and any(run.groups[run.owner[rank]].collectives for rank in ranks):
        return _late(run, graph, ranks)
    if ranks:
        return Blame((), "", tuple(sorted(ranks)), UNSURE)
    if run.silent and (UNKNOWN in ends or not ends):
        return Blame(tuple(sorted(run.silent)), "unreachable", (), SILENT) if waiting else Blame()
    if UNKNOWN not in ends and (inside := graph.ranks_in_circles()):
        return _in_a_circle(graph, inside)
    counts = any(group.collectives for group in run.groups)
    if waiting:
        return _different_operations(run, run.owner.keys()) or _all_wait(run, graph, counts, UNKNOWN in ends)
    return _different_places(run)


def _not_waiting(run: Run, busy: set[int], missed: set[int], *, others_wait: bool) -> Blame:
    counted = busy & missed
    # If counters show that some of these ranks are late, only the late ranks are blamed.
    chosen = counted or busy
    owners = {run.owner[rank] for rank in chosen}
    unknown = any(run.groups[at].kind == "unknown" for at in owners)
    if not run.is_minority(chosen, 0.5):
        confidence = UNSURE
    elif counted:
        confidence = COUNTED if unknown or not others_wait else AGREED
    else:
        alike = len({_activity(run.groups[at]) for at in owners}) == 1
        confidence = STACKS if alike and not unknown else UNSURE
    return Blame(tuple(sorted(chosen)), "elsewhere" if others_wait else "behind", (), confidence)


def _late(run: Run, graph: WaitGraph, late: set[int]) -> Blame:
    """Blame ranks that are in a collective and wait for no other rank while other ranks wait for them."""
    different = _different_operations(run, late)
    if different is not None:
        return different
    if not run.is_minority(late, 0.5):
        ahead = {rank for split in graph.splits for rank in split.ahead}
        few = ahead if 0 < len(ahead) < len(late) else late
        return Blame((), "", tuple(sorted(few)), UNSURE)
    why: Why = "unfinished" if _is_due(run, late) else "behind"
    return Blame(tuple(sorted(late)), why, (), COUNTED)


def _is_due(run: Run, late: set[int]) -> bool:
    """Return whether the late ranks wait in a collective that is ready to complete.

    Either all members joined the collective, or the collective is complete on other ranks.
    """
    for at in {run.owner[rank] for rank in late}:
        group = run.groups[at]
        for id, count in group.collectives.items():
            members = run.members[id]
            if (
                len(members) > 1
                and late.issuperset(members)
                and (count.done is None or count.done < count.joined)
            ):
                return True
            if count.done is None or count.done >= count.joined:
                continue
            for other in run.groups:
                theirs = other.collectives.get(id)
                done = theirs is not None and theirs.done is not None and theirs.done >= count.joined
                if other is not group and done and (other.what, other.place) == (group.what, group.place):
                    return True
    return False


def _in_a_circle(graph: WaitGraph, inside: set[int]) -> Blame:
    """Among the ranks in cycles, blame those that contradict the largest number of other ranks."""
    if odd := _called_differently(graph):
        return Blame(tuple(sorted(odd)), "diverged", (), COUNTED)
    splits = [split for split in graph.splits if split.late & inside and split.ahead & inside]
    missed = set().union(*(split.late for split in splits)) & inside
    involved = inside.union(*(split.late | split.ahead for split in splits))
    votes = _contradictions(graph.run, splits) or _smaller_parts(splits)
    most = max((votes[rank] for rank in missed), default=0)
    chosen = {rank for rank in missed if votes[rank] == most} if most > 0 else set()
    if len(chosen) != 1:
        chosen = _out_of_place(graph, splits, chosen or missed) or chosen
    if chosen and 2 * len(chosen) < len(involved):
        return Blame(tuple(sorted(chosen)), "diverged", (), STACKS)
    return Blame((), "diverged", tuple(sorted(chosen or inside)), UNSURE)


def _called_differently(graph: WaitGraph) -> set[int]:
    """Return the ranks that called a different operation than most ranks in the same collective.

    Only ranks that wait in a single process group are compared. If the backend does not report
    the operation, a rank can wait in any of several groups, so the group is unknown.
    """
    called: dict[int, dict[str, set[int]]] = defaultdict(lambda: defaultdict(set))
    for rank, nodes in graph.edges.items():
        if rank >= 0 and len({*nodes}) == 1 and nodes[0] < UNKNOWN:
            called[nodes[0]][graph.run.groups[graph.run.owner[rank]].what].add(rank)
    odd: set[int] = set()
    for operations in called.values():
        most = max(operations.values(), key=len)
        others = set().union(*operations.values()) - most
        if len(others) < len(most):
            odd |= others
    return odd


def _out_of_place(graph: WaitGraph, splits: Sequence[Split], among: set[int]) -> set[int]:
    """Return ranks that joined a different number of collectives than other ranks with the same activity.

    Only collectives in groups of the same kind are compared. First, ranks of the same pipeline stage are
    compared, because these ranks run the same program. Then, ranks of all stages are compared. The second
    result is used only if the comparison covers all ranks in `among`.
    """
    run = graph.run
    stage = {rank: at for stages in run.passing for at, rank in enumerate(stages)}
    split_groups = {split.id for split in splits}
    for one_stage in (True, False):
        seen: dict[tuple[object, ...], dict[int, set[str]]] = defaultdict(lambda: defaultdict(set))
        compared: list[tuple[int, tuple[object, ...], str, int]] = []
        for rank, counts in run.counts.items():
            doing = (*_activity(run.groups[run.owner[rank]]), stage.get(rank) if one_stage else None)
            for id, joined in counts:
                key = (*doing, run.roles.get(id, id))
                seen[key][joined].add(id)
                if rank in among and id in split_groups:
                    compared.append((rank, key, id, joined))
        odd: set[int] = set()
        usual: set[int] = set()
        for rank, place, id, joined in compared:
            others = [count for count, ids in seen[place].items() if ids - {id}]
            if len(others) == 1:
                (usual if others == [joined] else odd).add(rank)
        if odd and odd < among and (one_stage or among <= odd | usual):
            return odd
    return set()


def _contradictions(run: Run, splits: Sequence[Split]) -> Counter[int]:
    """Count, for each rank, the members of its groups that contradict the rank.

    Two ranks contradict each other if one of them is ahead in one kind of group and behind in another kind.
    The ranks of a group run the same program, so a contradiction is impossible if they take the same path.
    """
    votes: Counter[int] = Counter()
    for split in splits:
        sides: list[dict[tuple[tuple[Role, int], ...], list[int]]] = []
        for side in (split.late, split.ahead):
            alike: dict[tuple[tuple[Role, int], ...], list[int]] = defaultdict(list)
            for rank in side:
                alike[tuple((run.roles.get(id, id), joined) for id, joined in run.counts[rank])].append(rank)
            sides.append(alike)
        for late, behind in sides[0].items():
            for ahead, before in sides[1].items():
                counts = dict(ahead)
                if any(joined > counts.get(role, joined) for role, joined in late):
                    votes.update(dict.fromkeys(behind, len(before)))
                    votes.update(dict.fromkeys(before, len(behind)))
    return votes


def _smaller_parts(splits: Sequence[Split]) -> Counter[int]:
    """Count, for each rank, the split groups in which the rank is in the smaller part.

    Split groups in which the rank is in the larger part are subtracted.
    """
    votes: Counter[int] = Counter()
    for split in splits:
        smaller, larger = sorted((split.late, split.ahead), key=len)
        if len(smaller) < len(larger):
            votes.update(smaller)
            votes.subtract(larger)
    return votes


def _different_operations(run: Run, among: Iterable[int]) -> Blame | None:
    """Blame ranks that called a different operation than most other ranks in the same collective."""
    within = set(among)
    called: dict[tuple[str, int], dict[str, set[int]]] = defaultdict(lambda: defaultdict(set))
    members = {id: frozenset(ranks) for id, ranks in run.members.items()}
    whole = {id for id, ranks in members.items() if within < run.owner.keys() and ranks <= within}
    for at, group in enumerate(run.groups):
        if within.isdisjoint(group.ranks):
            continue
        for id, count in group.collectives.items():
            operation = count.operation.replace("_", "").lower()
            if not operation and count.done is None and id in whole and run.waits(at):
                # All members wait, and they wait only for each other.
                operation = f"{group.what} {group.place}"
            if operation and group.condition != "ended":
                called[id, count.joined][operation].update(members[id].intersection(group.ranks) & within)
    odd: set[int] = set()
    even: set[int] = set()
    for operations in called.values():
        sizes = sorted((len(ranks) for ranks in operations.values() if ranks), reverse=True)
        if len(sizes) < 2:
            continue
        if sizes[0] == sizes[1]:  # it is unknown which side took the wrong path
            even.update(*operations.values())
        else:
            odd.update(*(ranks for ranks in operations.values() if len(ranks) < sizes[0]))
    if odd:
        return Blame(tuple(sorted(odd)), "diverged", (), COUNTED)
    if not even:
        return None
    involved = tuple(sorted(even))
    if len(even) == len(run.owner):
        return Blame(involved, "diverged", (), UNSURE)
    return Blame((), "diverged", involved, UNSURE)


def _all_wait(run: Run, graph: WaitGraph, counts: bool, for_unknown: bool) -> Blame:
    """If all ranks wait and no counter shows that one of the ranks is late, determine the blame."""
    if all(group.kind == "joining" for group in run.groups) and not run.unreported:
        return Blame((), "outside", (), STACKS)
    if for_unknown and counts:
        few = 2 * len(run.unreported) < len(run.owner)
        return Blame((), "", tuple(sorted(run.unreported)), UNSURE) if few else Blame()
    if behind := _completed_fewer(run):
        # With gloo, torch can count a completed collective late.
        return Blame(behind, "unfinished", (), STACKS)
    done_counted = len(graph.visible) == len(run.owner)
    level = not graph.splits and all(group.collectives for group in run.groups)
    apart = _different_places(run, level=level)
    alike = not apart.ranks and not apart.candidates and not run.unreported and len(run.owner) > 1
    if alike and (done_counted or level):
        return Blame((), "unfinished", (), COUNTED if done_counted else STACKS)
    return apart


def _completed_fewer(run: Run) -> tuple[int, ...]:
    """Return ranks that completed fewer collectives of a group than the group's other members.

    A group is ignored if such ranks are not a small minority of the run.
    """
    found: set[int] = set()
    for id, ranks in run.members.items():
        done: dict[int, set[int]] = defaultdict(set)
        for rank in ranks:
            count = run.count(rank, id)
            if count is not None and count.done is not None:
                done[count.done].add(rank)
        if len(done) > 1 and run.is_minority(done[min(done)]):
            found |= done[min(done)]
    return tuple(sorted(found))


def _activity(group: StackGroup) -> tuple[str, str, str, int | None]:
    return group.kind, group.what, group.place, group.step


def _different_places(run: Run, *, level: bool = False) -> Blame:
    """Blame the ranks whose stacks show a different activity than the stacks of most ranks.

    If ranks communicate in several kinds of groups or in a pipeline, victims wait at many places in the code,
    so the stacks are inconclusive. This restriction does not apply if the ranks are `level`, which means that
    they joined the same number of collectives in each group.
    """
    places: dict[tuple[object, ...], set[int]] = defaultdict(set)
    for group in run.groups:
        places[_activity(group)].update(group.ranks)
    if len(places) < 2:
        outside = all(group.kind in _OUTSIDE for group in run.groups) and not run.unreported
        return Blame((), "outside", (), STACKS) if outside and len(run.owner) > 1 else Blame()
    sizes = sorted(map(len, places.values()), reverse=True)
    waiting = all(run.waits(at) for at in range(len(run.groups)))
    why: Why = "diverged" if waiting else "elsewhere"
    fewest = {rank for ranks in places.values() if len(ranks) < sizes[0] for rank in ranks}
    mixed = (run.mixed and not level) or any(is_pipeline_transfer(group.what) for group in run.groups)
    if not run.members and len(run.owner) > _ONE_HOST and (len(places) > 2 or len(fewest) != 1):
        mixed = True
    if waiting and mixed:
        # If the same number of ranks waits at each place, all ranks can be victims.
        fewer = len(places) == 2 and fewest
        return _by_group(run, fewest) if fewer else Blame((), "", tuple(sorted(fewest)), UNSURE)
    if sizes[0] == sizes[1]:
        return Blame(tuple(sorted(run.owner)), why, (), UNSURE) if waiting else Blame()
    sure = len(places) == 2 and run.is_minority(fewest)
    return Blame(tuple(sorted(fewest)), why, (), STACKS if sure else UNSURE)


def _by_group(run: Run, ranks: set[int]) -> Blame:
    """Blame ranks based on the process group of `ranks`.

    `ranks` wait at one place in the code, while all other ranks wait at another place.

    If `ranks` are a whole group, the collective of this group cannot complete. If `ranks` are most of a
    group, the other members of the group took a different path. If no groups are known, the smallest power of
    two of adjacent ranks is assumed to be a group, as in tensor and expert parallelism.
    """
    size = 1 << (max(ranks) ^ min(ranks)).bit_length()
    first = min(ranks) // size * size
    for members in sorted(run.members.values(), key=len) or [range(first, first + size)]:
        missing = set(members) - ranks
        is_group = len(members) < len(run.owner) and ranks.issubset(members) and len(missing) < len(ranks)
        if is_group and missing <= run.owner.keys():
            why: Why = "diverged" if missing else "unfinished"
            return Blame(tuple(sorted(missing or ranks)), why, (), STACKS if run.members else UNSURE)
    return Blame((), "", tuple(sorted(ranks)), UNSURE)
