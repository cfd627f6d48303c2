"""Judge which ranks of a run hold up the others, and why, from any source of what the ranks do.

The ranks and the collectives of their process groups are a wait-for graph. A rank that waits in a collective
of a group waits for the members that have joined fewer collectives of that group; in a pipeline, for the
stages beside its own; if no rank counts collectives, for ranks that do not wait. Most ranks of a stall are
victims: those at the end of all paths, which wait for no other, hold up the run. If paths end in a cycle,
ranks took different paths, and those are suspected that contradict most others.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Literal

import msgspec

from stallwatch_rules.stacks.records import Collectives, RankGroup, StackGroup, Why
from stallwatch_rules.stacks.spans import MOST_RANKS, members_of, ranks_in

AGREED = 0.97  #: the ranks' counters and stacks agree, or the kernel reports it
COUNTED = 0.92  #: by the ranks' counters alone
STACKS = 0.8  #: by the stacks of a small minority, by what is done, or by a cycle of ranks that count
SILENT = 0.85  #: at most, if a host is silent
UNSURE = 0.6  #: at most, if as many ranks do one as the other, or if ranks are unknown
_FEW = 0.25  # of all ranks: a minority
_ONE_HOST = 16  # ranks: more of them are seldom of one parallel group alone

_WAITS = ("collective", "joining")
# Kinds that depend on something that is no rank.
_OUTSIDE = ("joining", "load", "save", "lock", "network", "data")
_GONE: tuple[Literal["ended", "stopped"], ...] = ("ended", "stopped")
_PASSES = ("send", "recv", "p2p")  # parts of the names of operations between two pipeline stages
_Role = str | tuple[int, ...]  # what a group is for: its axis, or without a name its shape
_ANYBODY, _UNKNOWN = -1, -2  # nodes: whoever waits for nobody; whoever did not report


class Blame(msgspec.Struct, frozen=True):
    """The judgement: no `ranks` if none is to blame, or if that is not known."""

    ranks: tuple[int, ...] = ()
    why: Why = ""
    candidates: tuple[int, ...] = ()  #: without `ranks`: those of which some are to blame
    confidence: float = 0.0


def blame(
    groups: Sequence[StackGroup],
    layout: Sequence[RankGroup],
    *,
    world: int = 0,
    hosts: Mapping[str, str] | None = None,
    silent: Sequence[str] = (),
) -> Blame:
    """Judge what all known ranks do.

    `world`: ranks of the run, 0 if unknown. `hosts`: their folded ranks. `silent`: hosts that do not answer.
    """
    run = _Run(groups, layout, world, hosts or {}, silent)
    found = _by_condition(run) or _by_waiting(run)
    if not found.confidence:
        return found
    return msgspec.structs.replace(found, confidence=min(found.confidence, run.most))


class _Run:
    """Facts about the ranks of a run, by group of equal ones."""

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
        self.roles: dict[str, _Role] = {
            one.id: one.axis or _shape(self.members[one.id]) for one in layout if one.id in self.members
        }
        self.pipelines = [self.members.get(one.id, ()) for one in layout if one.axis == "pp"]
        #: Ranks meet in several ways, so of those that all wait some may wait for other groups.
        self.mixed = len({one.axis for one in layout if one.axis not in ("", "world", "dp")}) > 0
        #: Groups whose members are not known: a rank that counts nothing may be a member.
        self.open = {id for group in self.groups for id in group.collectives} - self.members.keys()
        for id in self.open:
            some = (each.ranks for each in self.groups if id in each.collectives or not each.collectives)
            self.members[id] = [rank for ranks in some for rank in ranks]
        named = {rank for host in silent for rank in ranks_in(hosts.get(host, ""))}
        expected = named.union(range(min(world, MOST_RANKS)), *self.members.values())
        self.unreported = expected - self.owner.keys()
        if all(host in hosts for host in silent):
            self.silent = named - self.owner.keys()
        else:
            there = {rank for host, spans in hosts.items() if host not in silent for rank in ranks_in(spans)}
            self.silent = self.unreported - there
        #: The most that anybody may be sure of.
        self.most = UNSURE if self.unreported - self.silent else SILENT if silent else 1.0
        self.is_silent = bool(silent)

    @cached_property
    def counts(self) -> dict[int, list[tuple[str, int]]]:
        """How many collectives each rank has joined, by group."""
        found: dict[int, list[tuple[str, int]]] = defaultdict(list)
        for id, ranks in self.members.items():
            for rank in ranks:
                at = self.owner.get(rank)
                count = self.groups[at].collectives.get(id) if at is not None else None
                if count is not None:
                    found[rank].append((id, count.joined))
        return found

    @cached_property
    def passing(self) -> list[Sequence[int]]:
        """The pipelines. If no group has a name, those may be some in which nobody is at a collective.

        Frameworks put the stages of a pipeline furthest apart (Megatron-LM, DeepSpeed, torch's meshes).
        """
        if self.pipelines:
            return self.pipelines
        like: dict[tuple[int, ...], list[Sequence[int]]] = defaultdict(list)
        for id, role in self.roles.items():
            if isinstance(role, tuple) and 1 < len(self.members[id]) < len(self.owner):
                like[role].append(self.members[id])
        used: set[_Role | None] = set()
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

    def ranks_where(self, of: Iterable[int]) -> tuple[int, ...]:
        return tuple(sorted(rank for at in of for rank in self.groups[at].ranks))

    def is_minority(self, ranks: Iterable[int], of: float = _FEW) -> bool:
        return len(set(ranks)) <= of * len(self.owner)


def _by_condition(run: _Run) -> Blame | None:
    """Judge by the state of processes in the kernel, the surest evidence."""
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
            found = run.ranks_where(at for at, group in enumerate(run.groups) if group.condition == why)
            if why == "ended" and run.silent and 2 * len(found) > len(run.owner):
                # Their launcher ended them when it missed the host.
                return Blame(tuple(sorted(run.silent)), "unreachable", (), SILENT)
            return Blame(found, why, (), AGREED)
    return None


class _Split(msgspec.Struct):
    """A process group in which ranks have joined different numbers of collectives."""

    id: str
    late: set[int]
    ahead: set[int]


class _Graph:
    """The wait-for graph: edges from ranks to collectives (negative), from those to absent ranks."""

    def __init__(self, run: _Run) -> None:
        self.run = run
        self.edges: dict[int, list[int]] = defaultdict(list)
        self.missed: set[int] = set()  # that counting ranks wait for
        self.splits: list[_Split] = []
        self.visible: set[int] = set()  # ranks that are known to wait in a collective that is counted
        self._nodes = _UNKNOWN
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
        self.edges[_ANYBODY] = free

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
        # Who counts nothing, and does not wait, is missed; who waits may wait here.
        late = [rank for at in here if at not in counts and not run.waits(at) for rank in here[at]]
        missing = bool(run.unreported) if id in run.open else sum(map(len, here.values())) < len(ranks)
        before: int | None = None
        passed: set[int] = set(late)
        for joined in sorted(levels):
            pending = [at for at in levels[joined] if self._pends(at, counts[at])]
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
                        self.edges[rank].append(_UNKNOWN)
            here_now = [rank for at in levels[joined] for rank in here[at]]
            late = [*late, *here_now]
            passed.update(here_now)
        if len(levels) > 1:
            ahead = {rank for at in levels[max(levels)] for rank in here[at]}
            self.splits.append(_Split(id, passed - ahead, ahead))

    def _pends(self, at: int, count: Collectives) -> bool:
        """Return whether these ranks may wait for a collective of the group."""
        if count.operation or (count.done is not None and count.done < count.joined):
            return self.run.groups[at].condition in ("alive", "blocked")
        return count.done is None and self.run.waits(at)

    def _add_uncounted(self, somebody: bool) -> None:
        """Add what no number shows: ranks wait for stages beside theirs, or for anybody who does not wait."""
        run, stages = self.run, None
        for at, group in enumerate(run.groups):
            if not run.waits(at):
                continue
            if passes(group.what):
                stages = _neighbours(run.passing) if stages is None else stages
                for rank in group.ranks:
                    beside = stages.get(rank, ())
                    self.edges[rank] += (other if other in run.owner else _UNKNOWN for other in beside)
                    if not beside and somebody:
                        self.edges[rank].append(_ANYBODY)
                    if not beside and run.unreported:
                        self.edges[rank].append(_UNKNOWN)
                continue
            for rank in group.ranks:
                if rank in self.visible or any(node != _UNKNOWN for node in self.edges.get(rank, ())):
                    continue
                if somebody:
                    self.edges[rank].append(_ANYBODY)
                if run.unreported:
                    self.edges[rank].append(_UNKNOWN)

    def ends(self) -> set[int]:
        """Return the nodes that others wait for, and that wait for none."""
        waited_for = {node for rank, others in self.edges.items() if rank >= 0 for node in others}
        new = [node for node in waited_for if node < 0]
        while new:
            others = [node for node in self.edges.get(new.pop(), ()) if node not in waited_for]
            waited_for.update(others)
            new += (node for node in others if node < 0)
        return {node for node in waited_for if not self.edges.get(node)}

    def circles(self) -> list[set[int]]:
        """Return the ranks of each circle that no path leaves: Tarjan's components, without recursion."""
        number: dict[int, int] = {}
        low: dict[int, int] = {}
        component: dict[int, int] = {}
        stack: list[int] = []
        found: list[set[int]] = []
        for start in list(self.edges):
            if start in number:
                continue
            work: list[tuple[int, Iterator[int]]] = []
            entering: int | None = start
            while entering is not None or work:
                if entering is not None:
                    number[entering] = low[entering] = len(number)
                    stack.append(entering)
                    work.append((entering, iter(self.edges.get(entering, ()))))
                    entering = None
                node, others = work[-1]
                for other in others:
                    if other not in number:
                        entering = other
                        break
                    if other not in component:
                        low[node] = min(low[node], number[other])
                if entering is not None:
                    continue
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == number[node]:
                    members: set[int] = set()
                    while node not in members:
                        members.add(stack.pop())
                    component.update(dict.fromkeys(members, len(found)))
                    found.append(members)
        leaving = {
            component[node]
            for node, others in self.edges.items()
            for o in others
            if component[o] != component[node]
        }
        return [
            {node for node in members if node >= 0}
            for at, members in enumerate(found)
            if at not in leaving and len(members) > 1
        ]


def _shape(ranks: Sequence[int]) -> tuple[int, ...]:
    """Return what groups of one kind have in common: how many they are, and how far apart."""
    return (ranks[1] - ranks[0], ranks[-1] - ranks[0], len(ranks)) if len(ranks) > 1 else (0, 0, len(ranks))


def passes(what: str) -> bool:
    """Return whether an operation is between two pipeline stages."""
    return any(part in what.lower() for part in _PASSES)


def _neighbours(pipelines: Iterable[Sequence[int]]) -> dict[int, list[int]]:
    """Return the ranks of the stages before and after each rank's own."""
    found: dict[int, list[int]] = defaultdict(list)
    for stages in pipelines:
        for one, next_one in pairwise(stages):
            found[one].append(next_one)
            found[next_one].append(one)
    return found


def _by_waiting(run: _Run) -> Blame:
    waiting = [at for at in range(len(run.groups)) if run.waits(at)]
    graph = _Graph(run)
    ends = graph.ends()
    ranks = {node for node in ends if node >= 0}
    busy = {rank for rank in ranks if not run.waits(run.owner[rank])}
    if busy:
        return _elsewhere(run, busy, graph.missed, somebody_waits=bool(waiting))
    if ranks and any(run.groups[run.owner[rank]].collectives for rank in ranks):
        return _late(run, graph, ranks)
    if ranks:
        return Blame((), "", tuple(sorted(ranks)), UNSURE)
    if run.silent and (_UNKNOWN in ends or not ends):
        return Blame(tuple(sorted(run.silent)), "unreachable", (), SILENT) if waiting else Blame()
    if _UNKNOWN not in ends and (circles := graph.circles()):
        return _in_a_circle(graph, circles)
    counts = any(group.collectives for group in run.groups)
    if waiting:
        return _different_operations(run, run.owner.keys()) or _together(run, graph, counts, _UNKNOWN in ends)
    return _other_places(run, range(len(run.groups)))


def _elsewhere(run: _Run, busy: set[int], missed: set[int], *, somebody_waits: bool) -> Blame:
    """Judge ranks that do not wait, and that others wait for: of several, those whom counting ranks miss."""
    counted = busy & missed
    chosen = counted or busy
    owners = {run.owner[rank] for rank in chosen}
    unknown = any(run.groups[at].kind == "unknown" for at in owners)
    if not run.is_minority(chosen, 0.5):
        confidence = UNSURE
    elif counted:
        confidence = COUNTED if unknown or not somebody_waits else AGREED
    else:
        alike = len({_doing(run.groups[at]) for at in owners}) == 1
        confidence = STACKS if alike and not unknown else UNSURE
    return Blame(tuple(sorted(chosen)), "elsewhere" if somebody_waits else "behind", (), confidence)


def _late(run: _Run, graph: _Graph, late: set[int]) -> Blame:
    """Judge ranks that wait, but for no rank, and that others miss."""
    different = _different_operations(run, late)
    if different is not None:
        return different
    if not run.is_minority(late, 0.5):
        ahead = {rank for split in graph.splits for rank in split.ahead}
        few = ahead if 0 < len(ahead) < len(late) else late
        return Blame((), "", tuple(sorted(few)), UNSURE)
    why: Why = "unfinished" if _not_done(run, late) else "behind"
    return Blame(tuple(sorted(late)), why, (), COUNTED)


def _not_done(run: _Run, late: set[int]) -> bool:
    """Whether these wait in a collective that all joined; or others, in the same call, are done with it."""
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


def _in_a_circle(graph: _Graph, circles: Sequence[set[int]]) -> Blame:
    """Judge ranks that wait for each other, by how many others each of them contradicts."""
    inside = set().union(*circles)
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


def _out_of_place(graph: _Graph, splits: Sequence[_Split], among: set[int]) -> set[int]:
    """Return those that are where others have joined another number of collectives of the same kind.

    Ranks of one stage run one program. Other stages count only if they confirm all the rest of `among`.
    """
    run = graph.run
    stage = {rank: at for stages in run.passing for at, rank in enumerate(stages)}
    split = {one.id for one in splits}
    for one_stage in (True, False):
        seen: dict[tuple[object, ...], dict[int, set[str]]] = defaultdict(lambda: defaultdict(set))
        own: list[tuple[int, tuple[object, ...], str, int]] = []
        for rank, counts in run.counts.items():
            doing = (*_doing(run.groups[run.owner[rank]]), stage.get(rank) if one_stage else None)
            for id, joined in counts:
                key = (*doing, run.roles.get(id, id))
                seen[key][joined].add(id)
                if rank in among and id in split:
                    own.append((rank, key, id, joined))
        others = {one: [joined for joined, ids in seen[one[1]].items() if ids - {one[2]}] for one in own}
        odd = {one[0] for one, joined in others.items() if len(joined) == 1 and joined != [one[3]]}
        usual = {one[0] for one, joined in others.items() if joined == [one[3]]}
        if odd and odd < among and (one_stage or among <= odd | usual):
            return odd
    return set()


def _contradictions(run: _Run, splits: Sequence[_Split]) -> Counter[int]:
    """Count for each rank the members of its groups that are ahead of it in one way and behind it in another.

    Ranks of one group run one program, so no order of their collectives allows both.
    """
    votes: Counter[int] = Counter()
    for split in splits:
        sides: list[dict[tuple[tuple[_Role, int], ...], list[int]]] = []
        for side in (split.late, split.ahead):
            alike: dict[tuple[tuple[_Role, int], ...], list[int]] = defaultdict(list)
            for rank in side:
                alike[tuple((run.roles.get(id, id), joined) for id, joined in run.counts[rank])].append(rank)
            sides.append(alike)
        for late, behind in sides[0].items():
            for ahead, before in sides[1].items():
                if _is_further(late, ahead):
                    votes.update(dict.fromkeys(behind, len(before)))
                    votes.update(dict.fromkeys(before, len(behind)))
    return votes


def _is_further(one: Sequence[tuple[_Role, int]], other: Sequence[tuple[_Role, int]]) -> bool:
    """Whether one rank has joined more collectives of some kind of group than another."""
    theirs = dict(other)
    return any(joined > theirs.get(role, joined) for role, joined in one)


def _smaller_parts(splits: Sequence[_Split]) -> Counter[int]:
    """Count for each rank in how many split groups it is of the smaller part, less those where it is not."""
    votes: Counter[int] = Counter()
    for split in splits:
        smaller, larger = sorted((split.late, split.ahead), key=len)
        if len(smaller) < len(larger):
            votes.update(smaller)
            votes.subtract(larger)
    return votes


def _different_operations(run: _Run, among: Iterable[int]) -> Blame | None:
    """Judge ranks that joined another operation than most others as the same collective of a group."""
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
                operation = f"{group.what} {group.place}"  # all of them wait, and for no other rank
            if operation and group.condition != "ended":
                called[id, count.joined][operation].update(members[id].intersection(group.ranks) & within)
    odd: set[int] = set()
    even: set[int] = set()
    for operations in called.values():
        sizes = sorted((len(ranks) for ranks in operations.values() if ranks), reverse=True)
        if len(sizes) < 2:
            continue
        if sizes[0] == sizes[1]:  # it is not known which of them took the wrong path
            even.update(*operations.values())
        else:
            odd.update(*(ranks for ranks in operations.values() if len(ranks) < sizes[0]))
    if odd:
        return Blame(tuple(sorted(odd)), "diverged", (), COUNTED)
    if not even:
        return None
    everybody = tuple(sorted(even))
    if len(even) == len(run.owner):
        return Blame(everybody, "diverged", (), UNSURE)
    return Blame((), "diverged", everybody, UNSURE)


def _together(run: _Run, graph: _Graph, counts: bool, for_unknown: bool) -> Blame:
    """Judge ranks that all wait, and of which none misses another by number."""
    if all(group.kind == "joining" for group in run.groups) and not run.unreported:
        return Blame((), "outside", (), STACKS)
    if for_unknown and counts:
        return Blame()
    if behind := _done_less(run):
        return Blame(behind, "unfinished", (), STACKS)  # with gloo, torch may count late what is done
    done_counted = len(graph.visible) == len(run.owner)
    level = not graph.splits and all(group.collectives for group in run.groups)
    apart = _other_places(run, range(len(run.groups)), level=level)
    alike = not apart.ranks and not apart.candidates and not run.unreported and len(run.owner) > 1
    if alike and (done_counted or level):
        return Blame((), "unfinished", (), COUNTED if done_counted else STACKS)
    return apart


def _done_less(run: _Run) -> tuple[int, ...]:
    """Return the few ranks that are done with fewer collectives of a group, of which all joined as many."""
    found: set[int] = set()
    for id, ranks in run.members.items():
        done: dict[int, set[int]] = defaultdict(set)
        for rank in ranks:
            at = run.owner.get(rank)
            count = run.groups[at].collectives.get(id) if at is not None else None
            if count is not None and count.done is not None:
                done[count.done].add(rank)
        if len(done) > 1 and run.is_minority(done[min(done)]):
            found |= done[min(done)]
    return tuple(sorted(found))


def _doing(group: StackGroup) -> tuple[str, str, str, int | None]:
    return group.kind, group.what, group.place, group.step


def _other_places(run: _Run, of: Iterable[int], *, level: bool = False) -> Blame:
    """Judge by stacks alone: those that do something else than most others; all, if it is a tie.

    If ranks meet in groups of several kinds, or in a pipeline, victims are at many places: nobody can say,
    unless all are `level`: they have joined as many collectives of each group.
    """
    places: dict[tuple[object, ...], set[int]] = defaultdict(set)
    for at in of:
        places[_doing(run.groups[at])].update(run.groups[at].ranks)
    if len(places) < 2:
        outside = all(group.kind in _OUTSIDE for group in run.groups) and not run.unreported
        return Blame((), "outside", (), STACKS) if outside and len(run.owner) > 1 else Blame()
    sizes = sorted(map(len, places.values()), reverse=True)
    waiting = all(run.waits(at) for at in range(len(run.groups)))
    why: Why = "diverged" if waiting else "elsewhere"
    fewest = {rank for ranks in places.values() if len(ranks) < sizes[0] for rank in ranks}
    mixed = (run.mixed and not level) or any(passes(group.what) for group in run.groups)
    if not run.members and len(run.owner) > _ONE_HOST and (len(places) > 2 or len(fewest) != 1):
        mixed = True
    if waiting and mixed:
        return Blame((), "", tuple(sorted(fewest)), UNSURE)
    if sizes[0] == sizes[1]:
        return Blame(run.ranks_where(range(len(run.groups))), why, (), UNSURE) if waiting else Blame()
    sure = len(places) == 2 and run.is_minority(fewest)
    return Blame(tuple(sorted(fewest)), why, (), STACKS if sure else UNSURE)
