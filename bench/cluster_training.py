"""A model of a training run on many hosts. The model shows the position of each rank after a fault.

In each step, the ranks compute, join collectives, and exchange messages between pipeline stages. A collective
is complete when all members of its group have joined it. A fault keeps one rank at one operation or makes the
rank skip or swap operations. Then all ranks continue until no rank can make progress. The stack samples show
the last operation of each rank. Nothing in this module depends on Stallwatch's assessment.
"""

from __future__ import annotations

import itertools
import random
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from stallwatch_rules.stacks.records import (
    Axis,
    Collectives,
    Condition,
    Kind,
    RankGroup,
    StackGroup,
    StallStacks,
)

LAYOUTS = ("dp", "fsdp", "moe", "tp-pp-dp")
#: Faults of the training itself.
FAULTS = (
    "sleep",
    "skipped",
    "order",
    "dead-rank",
    "dead-host",
    "loader",
    "network",
    "file-system",
    "frozen",
)
_STEPS = 3  # maximum number of steps after the fault until all ranks are stuck
#: Collectives that the probe counts: none (no response), joined, or done (joined and completed).
COUNTS = ("none", *["joined"] * 12, *["done"] * 7)


class Op(NamedTuple):
    """An operation in a rank's step."""

    kind: str  #: "code", "data", "save", "collective", "send", or "recv"
    name: str  #: name of the operation in a stack
    place: str
    group: str = ""  #: process group of a collective
    size: int = 0  #: size of the transferred data; calls with different sizes do not match
    peer: int = -1  #: rank at the other end of a message


@dataclass(frozen=True)
class Truth:
    """The ranks and hosts that are at fault.

    The set of ranks is empty if no rank is at fault, or if the stacks cannot show which rank is at fault.
    """

    fault: str
    ranks: frozenset[int]
    hosts: frozenset[str]
    silent: frozenset[str] = frozenset()
    detail: str = ""


@dataclass
class State:
    """The state of a rank when the run stalls."""

    step: int  #: newest step that the rank finished
    op: Op
    waits: bool
    condition: Condition = "alive"
    joined: dict[str, int] = field(default_factory=dict)
    done: dict[str, int] = field(default_factory=dict)


class Training:
    """The ranks, the hosts, the process groups, and the program of each rank."""

    def __init__(self, layout: str, hosts: int, per_host: int, draw: random.Random) -> None:
        self.layout = layout
        self.per_host = per_host
        self.world = hosts * per_host
        self.draw = draw
        self.named = draw.random() < 0.5  #: True if the framework names the axes of its groups
        self.counts = draw.choice(COUNTS)
        self.first_step = draw.randrange(50, 100_000)
        self.groups: dict[str, Sequence[int]] = {"world": range(self.world)}
        self.axes: dict[str, Axis] = {"world": "world"}
        self._groups_of: dict[int, list[str]] = {rank: ["world"] for rank in range(self.world)}
        self._programs: dict[int, list[Op]] = {}
        if layout == "tp-pp-dp":
            self._three_dimensions()
        elif layout == "moe":
            size = draw.choice((8, 16)) if self.world % 16 == 0 else per_host
            for first in range(0, self.world, size):
                self._group("ep", range(first, first + size))
        self._members = {name: len(ranks) for name, ranks in self.groups.items()}

    def host(self, rank: int) -> str:
        return f"h{rank // self.per_host}"

    def ranks_of(self, host: str) -> range:
        first = int(host[1:]) * self.per_host
        return range(first, first + self.per_host)

    @property
    def hosts(self) -> list[str]:
        return [f"h{index}" for index in range(self.world // self.per_host)]

    def _group(self, axis: Axis, ranks: Sequence[int]) -> None:
        name = f"{axis}{ranks[0]}-{ranks[-1]}-{len(ranks)}"
        self.groups[name], self.axes[name] = ranks, axis
        for rank in ranks:
            self._groups_of[rank].append(name)

    def _three_dimensions(self) -> None:
        """Assign ranks to groups as Megatron does: the axis tp varies fastest, and the axis pp slowest."""
        self.tp = self.draw.choice([size for size in (2, 4, 8) if self.per_host % size == 0] or [1])
        self.pp = self.draw.choice([size for size in (2, 4, 8) if self.world % (self.tp * size) == 0] or [1])
        self.dp = self.world // self.tp // self.pp
        self.micro = self.draw.randint(1, 4)
        stage = self.tp * self.dp
        for first in range(0, self.world, self.tp):
            self._group("tp", range(first, first + self.tp))
        for first in range(stage):
            self._group("pp", range(first, self.world, stage))
        for base in range(0, self.world, stage):
            for shift in range(self.tp):
                self._group("dp", range(base + shift, base + stage, self.tp))

    def group_of(self, rank: int, axis: Axis) -> str:
        return next(name for name in self._groups_of[rank] if self.axes[name] == axis)

    def program(self, rank: int) -> list[Op]:
        """Return the operations in one step of this rank."""
        if rank not in self._programs:
            if self.layout in ("dp", "fsdp"):
                made = self._dp() if self.layout == "dp" else self._fsdp()
            else:
                made = self._moe(rank) if self.layout == "moe" else self._stages(rank)
            self._programs[rank] = made
        return self._programs[rank]

    def _begin(self) -> list[Op]:
        return [
            Op("data", "DataLoader.__next__", "train.py:31 in main"),
            Op("code", "", "train.py:12 in score"),
        ]

    def _end(self) -> list[Op]:
        saving = [Op("save", "torch.save", "train.py:55 in save_checkpoint")]
        return [
            Op("code", "", "optimizer.py:20 in step"),
            *saving,
            Op("collective", "barrier", "train.py:58 in save_checkpoint", "world", 1),
        ]

    def _dp(self) -> list[Op]:
        buckets = [
            Op("collective", "all_reduce", "train.py:40 in backward", "world", 25_000 + index)
            for index in range(3)
        ]
        return [*self._begin(), Op("code", "", "model.py:9 in forward"), *buckets, *self._end()]

    def _fsdp(self) -> list[Op]:
        ops = self._begin()
        for index in range(3):
            ops.append(Op("collective", "all_gather_into_tensor", "train.py:38 in forward", "world", 100))
            ops.append(Op("code", "", f"model.py:{9 + index} in forward"))
        for _ in range(3):
            ops.append(Op("collective", "all_gather_into_tensor", "train.py:40 in backward", "world", 100))
            ops.append(Op("collective", "reduce_scatter_tensor", "train.py:40 in backward", "world", 100))
        ops.append(Op("collective", "all_reduce", "train.py:44 in clip_gradients", "world", 4))
        return [*ops, *self._end()]

    def _moe(self, rank: int) -> list[Op]:
        group = self.group_of(rank, "ep")
        ops = self._begin()
        for _ in range(2):
            ops.append(Op("code", "", "model.py:9 in attention"))
            ops.append(Op("collective", "all_to_all_single", "moe.py:21 in dispatch", group, 64))
            ops.append(Op("code", "", "moe.py:30 in experts"))
            ops.append(Op("collective", "all_to_all_single", "moe.py:44 in combine", group, 64))
        ops += [Op("collective", "all_reduce", "train.py:40 in backward", "world", 900 + i) for i in range(2)]
        return [*ops, *self._end()]

    def _stages(self, rank: int) -> list[Op]:
        """Return the operations of a GPipe schedule: all forward passes, then all backward passes."""
        tp, dp, stage = self.group_of(rank, "tp"), self.group_of(rank, "dp"), self.tp * self.dp
        first, last = rank < stage, rank >= self.world - stage
        ops = self._begin()[:1] if first or last else []
        ops.append(Op("code", "", "train.py:12 in score"))
        for _ in range(self.micro):
            if not first:
                ops.append(Op("recv", "recv", "schedules.py:71 in recv_forward", peer=rank - stage))
            ops.append(Op("code", "", "model.py:9 in forward"))
            ops += [Op("collective", "all_reduce", "layers.py:50 in reduce", tp, 64)] * 2
            if not last:
                ops.append(Op("send", "send", "schedules.py:80 in send_forward", peer=rank + stage))
        for _ in range(self.micro):
            if not last:
                ops.append(Op("recv", "recv", "schedules.py:93 in recv_backward", peer=rank + stage))
            ops += [Op("collective", "all_reduce", "layers.py:66 in reduce_gradient", tp, 64)] * 2
            if not first:
                ops.append(Op("send", "send", "schedules.py:99 in send_backward", peer=rank - stage))
        ops.append(Op("collective", "all_reduce", "train.py:44 in reduce_gradients", dp, 5000))
        ops.append(Op("collective", "all_reduce", "train.py:47 in clip_gradients", "world", 4))
        return [*ops, *self._end()]


class Hang:
    """A training run that continued until no rank could make progress."""

    def __init__(self, training: Training, truth: Truth, states: Mapping[int, State]) -> None:
        self.training = training
        self.truth = truth
        self.states = states

    def stacks(self, host: str, time: float, seconds: float = 0.4) -> StallStacks:
        """Return the stacks of this host's ranks, as the host's agent sees them."""
        training = self.training
        ranks = [rank for rank in training.ranks_of(host) if rank in self.states]
        found: dict[tuple[object, ...], list[StackGroup]] = defaultdict(list)
        for rank in ranks:
            state = self.states[rank]
            counts = self._counts(rank, state)
            rank_group = StackGroup(
                ranks=[rank],
                kind=_kind(state),
                condition=state.condition,
                what=state.op.name if state.condition != "ended" else "",
                place=state.op.place if state.condition != "ended" else "",
                step=state.step if training.counts != "none" else None,
                collectives=counts,
                frames=[f"/job/{state.op.place}"] if state.condition == "alive" else [],
            )
            like = found[
                rank_group.kind, rank_group.condition, rank_group.what, rank_group.place, rank_group.step
            ]
            for group in like:
                both = group.collectives.keys() & counts.keys()
                if all(group.collectives[name] == counts[name] for name in both):
                    group.ranks.append(rank)
                    group.collectives |= counts
                    break
            else:
                like.append(rank_group)
        names = dict.fromkeys(name for rank in ranks for name in training._groups_of[rank])
        layout = [
            RankGroup(
                id=name,
                ranks=spans(training.groups[name]),
                name=f"{index}",
                axis=training.axes[name] if training.named or name == "world" else "",
            )
            for index, name in enumerate(names)
        ]
        return StallStacks(
            time=time,
            seconds=seconds,
            groups=[item for groups in found.values() for item in groups],
            elsewhere=training.world - len(ranks),
            layout=layout if training.counts != "none" else [],
            pids={rank: 1000 + rank for rank in ranks},
        )

    def _counts(self, rank: int, state: State) -> dict[str, Collectives]:
        training = self.training
        if training.counts == "none" or state.condition in ("ended", "stopped"):
            return {}
        waits_in = state.op.group if state.waits and state.op.kind == "collective" else ""
        return {
            name: Collectives(
                joined=state.joined.get(name, 0),
                done=state.done.get(name, 0) if training.counts == "done" else None,
                operation=state.op.name if name == waits_in else "",
            )
            for name in training._groups_of[rank]
        }


def _kind(state: State) -> Kind:
    if state.condition == "ended":
        return "unknown"
    if state.op.kind in ("collective", "recv", "send"):
        return "collective" if state.waits else "code"
    kinds: dict[str, Kind] = {"code": "code", "data": "data", "save": "save"}
    return kinds[state.op.kind]


def spans(ranks: Sequence[int]) -> str:
    """Format ranks as ``0-7,16``."""
    parts: list[str] = []
    start = before = ranks[0]
    for rank in [*ranks[1:], -1]:
        if rank != before + 1:
            parts.append(str(start) if start == before else f"{start}-{before}")
            start = rank
        before = rank
    return ",".join(parts)


@dataclass
class _Deviation:
    """A rank's deviation: it is stuck at `at`, skips from `at` to `other`, or swaps these operations."""

    rank: int
    at: int  #: index of the operation in the first step
    what: str  #: "stuck", "skip", or "swap"
    other: int = 0


class _Run:
    """The progress of all ranks, starting at the step in which the fault occurs."""

    def __init__(self, training: Training, deviations: Mapping[int, _Deviation]) -> None:
        self.training = training
        #: A process group, and the ranks in this group that never complete a certain collective of the group.
        self.unfinished: tuple[str, frozenset[int]] | None = None
        self._unfinished_number = 0
        self._deviations = deviations
        self.step = dict.fromkeys(range(training.world), 0)
        self.at = dict.fromkeys(range(training.world), 0)
        self.joined: dict[int, dict[str, int]] = {rank: defaultdict(int) for rank in range(training.world)}
        self.done: dict[int, dict[str, int]] = {rank: defaultdict(int) for rank in range(training.world)}
        self.stuck: set[int] = set()
        self.waiting: dict[int, Op] = {}
        self._arrived: dict[tuple[str, int], dict[int, tuple[str, int]]] = defaultdict(dict)
        self._sent: dict[tuple[int, int], int] = defaultdict(int)
        self._programs = [self._program(rank) for rank in range(training.world)]

    def _program(self, rank: int) -> tuple[list[Op], list[Op]]:
        usual = self.training.program(rank)
        deviation = self._deviations.get(rank)
        first = usual
        if deviation is not None and deviation.what == "skip":
            first = [*usual[: deviation.at], *usual[deviation.other + 1 :]]
        if deviation is not None and deviation.what == "swap":
            first = list(usual)
            first[deviation.at], first[deviation.other] = first[deviation.other], first[deviation.at]
        return first, usual

    def op(self, rank: int) -> Op:
        """Return the operation that this rank has reached."""
        return self._programs[rank][min(self.step[rank], 1)][self.at[rank]]

    def fail(self, group: str, number: int, ranks: frozenset[int]) -> None:
        """Prevent these ranks from completing one collective of a group."""
        self.unfinished, self._unfinished_number = (group, ranks), number

    def go(self) -> bool:
        """Run until no rank can continue. Return True if all ranks are stuck or wait for other ranks."""
        todo = deque(range(self.training.world))
        while todo:
            todo.extend(self._advance(todo.popleft()))
        return len(self.stuck) + len(self.waiting) == self.training.world

    def _advance(self, rank: int) -> list[int]:
        released: list[int] = []
        while self.step[rank] < _STEPS:
            op = self.op(rank)
            deviation = self._deviations.get(rank)
            here = self.step[rank] == 0 and deviation is not None and deviation.at == self.at[rank]
            if here and deviation is not None and deviation.what == "stuck":
                self.stuck.add(rank)
                return released
            if op.kind == "collective":
                done = self._join(rank, op)
                if done is None:
                    self.waiting[rank] = op
                    return released
                released += done
                if rank not in self._through:
                    self.waiting[rank] = op
                    return released
            elif op.kind == "recv":
                if not self._sent[op.peer, rank]:
                    self.waiting[rank] = op
                    return released
                self._sent[op.peer, rank] -= 1
            elif op.kind == "send":
                self._sent[rank, op.peer] += 1
                there = self.waiting.get(op.peer)
                if there is not None and there.kind == "recv" and there.peer == rank:
                    del self.waiting[op.peer]
                    released.append(op.peer)
            self._pass(rank)
        return released

    def _pass(self, rank: int) -> None:
        self.at[rank] += 1
        if self.at[rank] == len(self._programs[rank][min(self.step[rank], 1)]):
            self.step[rank] += 1
            self.at[rank] = 0

    _through: frozenset[int] = frozenset()

    def _join(self, rank: int, op: Op) -> list[int] | None:
        """Make a rank join a collective. Return the other ranks that can then continue.

        Return ``None`` if the collective is not complete.
        """
        number = self.joined[rank][op.group] + 1
        self.joined[rank][op.group] = number
        arrived = self._arrived[op.group, number]
        arrived[rank] = (op.name, op.size)
        if len(arrived) < self.training._members[op.group] or len(set(arrived.values())) > 1:
            return None
        del self._arrived[op.group, number]
        through = set(arrived)
        if self.unfinished is not None and (op.group, number) == (
            self.unfinished[0],
            self._unfinished_number,
        ):
            through -= self.unfinished[1]
        self._through = frozenset(through)
        for member in through:
            self.done[member][op.group] = number
            if member != rank:
                del self.waiting[member]
                self._pass(member)
        return [member for member in through if member != rank]


def hang(fault: str, training: Training) -> Hang:
    """Inject a fault at a random point in a training run and continue until all ranks are stuck."""
    draw = training.draw
    for _ in range(1000):
        found = _attempt(fault, training, draw)
        if found is not None:
            return found
    raise RuntimeError(f"no fault of the kind {fault} stops all ranks of {training.layout}")


def _attempt(fault: str, training: Training, draw: random.Random) -> Hang | None:
    rank = draw.randrange(training.world)
    host = training.host(rank)
    program = training.program(rank)
    collectives = [at for at, op in enumerate(program) if op.kind == "collective"]
    alone = frozenset([rank])
    truth = Truth(fault, alone, frozenset([host]))
    deviations: dict[int, _Deviation] = {}
    condition: Condition = "alive"
    if fault in ("sleep", "loader", "dead-rank"):
        kind = {"sleep": "code", "loader": "data"}.get(fault)
        places = [at for at, op in enumerate(program) if kind in (None, op.kind)]
        if not places:
            return None
        deviations[rank] = _Deviation(rank, draw.choice(places), "stuck")
        condition = "ended" if fault == "dead-rank" else "alive"
    elif fault == "skipped":
        first = last = draw.choice(collectives)  # one call of the user's code can run several collectives
        while program[last + 1 : last + 2] and program[last + 1].place == program[first].place:
            last += 1
        while first and program[first - 1].place == program[last].place:
            first -= 1
        deviations[rank] = _Deviation(rank, first, "skip", last)
    elif fault == "order":
        pairs = [
            (item, two)
            for item, two in itertools.pairwise(collectives)
            if (program[item].name, program[item].place) != (program[two].name, program[two].place)
        ]
        one_at, two_at = draw.choice(pairs)
        deviations[rank] = _Deviation(rank, one_at, "swap", two_at)
    elif fault == "dead-host":
        at = draw.randrange(len(program))
        for other in training.ranks_of(host):
            deviations[other] = _Deviation(other, min(at, len(training.program(other)) - 1), "stuck")
        truth = Truth(fault, frozenset(training.ranks_of(host)), frozenset([host]), frozenset([host]))
    elif fault == "file-system":
        everywhere = draw.random() < 0.5
        writers = [other for other in range(training.world) if everywhere or other % training.per_host == 0]
        for other in writers:
            ops = training.program(other)
            at = next(index for index, op in enumerate(ops) if op.kind == "save")
            deviations[other] = _Deviation(other, at, "stuck")
        stuck_there = frozenset() if everywhere else frozenset(writers)
        truth = Truth(fault, stuck_there, frozenset(), detail="all" if everywhere else "one a host")
        condition = "blocked"
    run = _Run(training, deviations)
    if fault == "network":
        op = program[draw.choice(collectives)]
        # If True, the ranks on other hosts complete the collective. Otherwise, no rank of the group does.
        ends = draw.random() < 0.5
        bad = frozenset(other for other in training.ranks_of(host) if other in set(training.groups[op.group]))
        if not ends or len(bad) == len(training.groups[op.group]):
            bad, ends = frozenset(training.groups[op.group]), False
        before = [each for each in program[: program.index(op)] if each.group == op.group]
        run.fail(op.group, len(before) + 1, bad)
        everywhere = len(bad) == training.world
        truth = Truth(
            fault,
            frozenset() if everywhere else bad,
            frozenset() if everywhere else frozenset(map(training.host, bad)),
            detail=f"{op.name} of {op.group}" + (", others done" if ends else ""),
        )
    if fault == "frozen":
        run.stuck.update(range(training.world))
        for other in range(training.world):
            run.at[other] = draw.randrange(len(training.program(other)))
        truth, condition = Truth(fault, frozenset(), frozenset()), "stopped"
    elif not run.go():
        return None
    base = {name: training.first_step * 7 + len(ranks) for name, ranks in training.groups.items()}
    states = {}
    for other in range(training.world):
        if training.host(other) in truth.silent:
            continue
        op = run.op(other)
        stuck = other in run.stuck
        states[other] = State(
            step=training.first_step + run.step[other] - 1,
            op=op,
            waits=not stuck,
            condition=condition if stuck else "alive",
            joined={name: base[name] + run.joined[other][name] for name in training._groups_of[other]},
            done={name: base[name] + run.done[other][name] for name in training._groups_of[other]},
        )
    return Hang(training, truth, states)


def parts(found: Hang, time: float = 0.0) -> dict[str, StallStacks]:
    """Return the stacks from each host whose agent responds, keyed by host."""
    return {host: found.stacks(host, time) for host in found.training.hosts if host not in found.truth.silent}


def drawn(seed: int, number: int, fault: str, hosts: int, per_host: int) -> Hang:
    """Return the hang for one trial. The arguments determine all random choices."""
    draw = random.Random(f"{seed}/{number}/{fault}")
    return hang(fault, Training(draw.choice(LAYOUTS), hosts, per_host, draw))


def judged(truth: Truth, stacks: StallStacks | None, host_of: Any) -> str:
    """Compare the blamed ranks with the truth. Return "right", "wrong", or "cannot tell"."""
    odd = frozenset(stacks.odd) if stacks is not None else frozenset()
    blameless = not truth.ranks or truth.fault == "file-system"
    if not odd:
        return "right" if blameless and stacks is not None else "cannot tell"
    if odd == truth.ranks:
        return "right"
    if truth.silent and truth.silent == {host_of(rank) for rank in odd}:
        return "right"
    unsure = stacks is not None and stacks.confidence < 0.9
    return "cannot tell" if truth.ranks and truth.ranks <= odd and unsure else "wrong"
