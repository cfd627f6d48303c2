"""Measure how well and how fast Stallwatch finds the ranks at fault in simulated hangs of many ranks.

    python bench/blame.py --ranks 16384

Each trial simulates the steps of a run (pipeline stages, tensor-parallel and expert-parallel collectives, a
gradient reduction, and a norm over all ranks) until a fault of one rank or host stops all ranks. Then the
benchmark combines the states of the ranks into groups and has Stallwatch evaluate the groups. The result is
"right" if Stallwatch names exactly the ranks at fault, or names no rank if no rank is at fault. The result is
"wrong" if Stallwatch names other ranks. Any other result is "cannot tell".
"""

from __future__ import annotations

import argparse
import random
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import msgspec

from stallwatch_rules.stacks.folding import over_hosts
from stallwatch_rules.stacks.records import Axis, Collectives, RankGroup, StackGroup, StallStacks
from stallwatch_rules.stacks.spans import spans_of

PER_HOST = 8
STEPS, MICROBATCHES = 3, 2
#: Sources of information about the collectives. "recorder" is the torch flight recorder, which shows the
#: collectives that a rank has joined and completed. "joined" is a backend that counts only the joined
#: collectives. For "stacks", only the stacks of the ranks are known, and no collectives are counted.
KNOWN = ("recorder", "joined", "stacks")
FAULTS = (
    "sleep",
    "loader",
    "skipped",
    "other operation",
    "other order",
    "dead",
    "stopped",
    "dead host",
    "unfinished",
    "link",
    "store",
    "frozen",
)
#: Functions that return the sizes of the parallel groups for a number of ranks. Data parallelism takes the
#: remaining factor.
LAYOUTS: Mapping[str, Callable[[int], dict[str, int]]] = {
    "dp": lambda _: {},
    "tp x pp x dp": lambda ranks: {"tp": 8 if ranks >= 64 else 2, "pp": 8 if ranks >= 256 else 4},
    "ep": lambda ranks: {"ep": 8 if ranks >= 64 else 4},
}


class Operation(msgspec.Struct, frozen=True):
    """One operation of a rank: a collective of a group, or a message to or from another pipeline stage."""

    name: str
    group: str = ""
    peer: int = -1
    line: int = 0


class Layout:
    """The process groups of a run, in Megatron's order of ranks: tensor, data, pipeline."""

    def __init__(self, ranks: int, *, tp: int = 1, pp: int = 1, ep: int = 1) -> None:
        self.ranks, self.tp, self.pp, self.ep = ranks, tp, pp, ep
        stage = ranks // pp
        self.members: dict[str, list[int]] = {}
        self.axes: dict[str, Axis] = {}
        self.groups: dict[str, RankGroup] = {}
        self.of: list[dict[Axis, str]] = [{} for _ in range(ranks)]
        self._add("world", [list(range(ranks))])
        if tp > 1:
            self._add("tp", [list(range(first, first + tp)) for first in range(0, ranks, tp)])
        if pp > 1:
            self._add("pp", [list(range(first, ranks, stage)) for first in range(stage)])
        data = [
            list(range(begin + first, begin + stage, tp))
            for begin in range(0, ranks, stage)
            for first in range(tp)
        ]
        self._add("dp", [item for item in data if len(item) > 1])
        if ep > 1:
            self._add("ep", [item[at : at + ep] for item in data for at in range(0, len(item), ep)])

    def _add(self, axis: Axis, groups: list[list[int]]) -> None:
        for ranks in groups:
            id = f"{axis}:{spans_of(ranks)}"
            self.members[id], self.axes[id] = ranks, axis
            self.groups[id] = RankGroup(id, spans_of(ranks), axis, axis)
            for rank in ranks:
                self.of[rank][axis] = id

    def program(self, rank: int) -> list[Operation]:
        """Return the operations in one of a rank's training steps, in order.

        All forward passes come first, then all backward passes, then the reduction of the gradients.
        """
        groups, stages = self.of[rank], self.members.get(self.of[rank].get("pp", ""), [rank])
        at = stages.index(rank)
        before, after = ([stages[at - 1]] if at else []), stages[at + 1 : at + 2]
        found: list[Operation] = []
        for sources, targets, line in ((before, after, 10), (after, before, 20)):
            for _ in range(MICROBATCHES):
                found += (Operation("recv", peer=peer, line=line) for peer in sources)
                if "tp" in groups:
                    found += (Operation("all_reduce", groups["tp"], line=line + n) for n in (1, 2))
                if "ep" in groups:
                    found += (Operation("all_to_all", groups["ep"], line=line + n) for n in (3, 4))
                found += (Operation("send", peer=peer, line=line + 5) for peer in targets)
        if "dp" in groups:
            found.append(Operation("reduce_scatter", groups["dp"], line=31))
            found.append(Operation("all_gather", groups["dp"], line=32))
        return [*found, Operation("all_reduce", groups["world"], line=33)]


class Trial:
    """A run that has stopped because of one fault."""

    def __init__(self, layout: Layout, fault: str, chance: random.Random) -> None:
        self.layout, self.fault = layout, fault
        self.rank = chance.randrange(layout.ranks)
        self.programs = [layout.program(rank) * STEPS for rank in range(layout.ranks)]
        length = len(self.programs[self.rank])
        self.at = chance.randrange(length // 3, 2 * length // 3)
        first = self.rank - self.rank % PER_HOST
        self.stopped = set(range(first, first + PER_HOST)) if fault == "dead host" else {self.rank}
        self.guilty = frozenset(self.stopped)
        self._spoil(chance)
        self.place = [0] * layout.ranks
        self.joined: list[Counter[str]] = [Counter() for _ in range(layout.ranks)]
        self.done: list[Counter[str]] = [Counter() for _ in range(layout.ranks)]
        self._run()

    def _spoil(self, chance: random.Random) -> None:
        program = self.programs[self.rank]
        calls = [
            at
            for at, item in enumerate(program)
            if item.group and self.at <= at < self.at + len(program) // 3
        ]
        self.call = chance.choice(calls)
        operation = program[self.call]
        if self.fault == "skipped":
            del program[self.call]
        elif self.fault == "other operation":
            program[self.call] = msgspec.structs.replace(operation, name="broadcast", line=50)
        elif self.fault == "other order":
            others = [at for at in range(self.call + 1, len(program)) if program[at].group]
            others = [
                at
                for at in others
                if (program[at].group, program[at].name) != (operation.group, operation.name)
            ]
            if others:
                program[self.call], program[others[0]] = program[others[0]], operation

    def _run(self) -> None:
        ready = deque(range(self.layout.ranks))
        calls: dict[tuple[str, int], list[tuple[int, str]]] = defaultdict(list)
        sent: Counter[tuple[int, int]] = Counter()
        received: Counter[tuple[int, int]] = Counter()
        receiving: dict[tuple[int, int], int] = {}
        stops = self.fault in ("sleep", "loader", "dead", "stopped", "dead host")
        while ready:
            rank = ready.popleft()
            program = self.programs[rank]
            while self.place[rank] < len(program):
                if stops and rank in self.stopped and self.place[rank] >= self.at:
                    break
                operation = program[self.place[rank]]
                if operation.name == "send":
                    sent[rank, operation.peer] += 1
                    if receiving.pop((rank, operation.peer), None) is not None:
                        ready.append(operation.peer)
                elif operation.name == "recv":
                    if received[operation.peer, rank] >= sent[operation.peer, rank]:
                        receiving[operation.peer, rank] = 1
                        break
                    received[operation.peer, rank] += 1
                else:
                    self.joined[rank][operation.group] += 1
                    number = self.joined[rank][operation.group]
                    calls[operation.group, number].append((rank, operation.name))
                    if not self._completes(calls[operation.group, number], operation.group, number):
                        break
                    for other, _ in calls.pop((operation.group, number)):
                        if self._is_kept(other, operation.group, number):
                            continue
                        self.done[other][operation.group] = number
                        self.place[other] += 1
                        if other != rank:
                            ready.append(other)
                    if self._is_kept(rank, operation.group, number):
                        break
                    continue
                self.place[rank] += 1

    def _completes(self, calls: list[tuple[int, str]], group: str, number: int) -> bool:
        if len(calls) < len(self.layout.members[group]) or len({name for _, name in calls}) > 1:
            return False
        return not (self.fault == "link" and self._is_call(group, number))

    def _is_kept(self, rank: int, group: str, number: int) -> bool:
        return self.fault == "unfinished" and rank == self.rank and self._is_call(group, number)

    def _is_call(self, group: str, number: int) -> bool:
        program = self.programs[self.rank]
        before = sum(item.group == group for item in program[: self.call])
        return program[self.call].group == group and number == before + 1

    def hosts(self, known: str) -> tuple[dict[str, StallStacks], list[str]]:
        """Return the report from each host's agent and the names of the hosts whose agents do not respond."""
        parts = {}
        for first in range(0, self.layout.ranks, PER_HOST):
            ranks = range(first, first + PER_HOST)
            if self.fault == "dead host" and self.rank in ranks:
                continue
            groups = [self._group(rank, known) for rank in ranks]
            stacks = StallStacks(1.0, 0.1, groups, elsewhere=self.layout.ranks - PER_HOST)
            if known != "stacks":
                ids = {id for rank in ranks for id in self.layout.of[rank].values()}
                stacks.layout = [self.layout.groups[id] for id in sorted(ids)]
            parts[f"n{first // PER_HOST}"] = stacks
        return parts, [f"n{self.rank // PER_HOST}"] if self.fault == "dead host" else []

    def _group(self, rank: int, known: str) -> StackGroup:
        if self.fault == "store":
            return StackGroup([rank], "joining", what="init_process_group", place="train.py:3 in main")
        program, at = self.programs[rank], self.place[rank]
        operation = program[at] if at < len(program) else Operation("barrier", line=60)
        waits = at >= len(program) or not self._hangs(rank)
        found = StackGroup(
            [rank], "collective", what=operation.name, place=f"train.py:{operation.line} in step"
        )
        if not waits:
            found.kind, found.what, found.place = "code", "", "train.py:11 in score"
            if self.fault == "loader":
                found.kind, found.what = "data", "DataLoader.__next__"
            elif self.fault == "dead":
                found.condition, found.kind = "ended", "unknown"
        if self.fault == "frozen" or (self.fault == "stopped" and rank == self.rank):
            found.condition = "stopped"
        if known == "stacks" or found.condition == "ended":
            return found
        for id in self.layout.of[rank].values():
            if self.layout.axes[id] == "pp":
                continue
            joined, done = 4711 + self.joined[rank][id], 4711 + self.done[rank][id]
            under_way = operation.name if waits and id == operation.group else ""
            found.collectives[id] = (
                Collectives(joined, done, under_way) if known == "recorder" else Collectives(joined)
            )
        return found

    @property
    def is_complete(self) -> bool:
        """Return True if all ranks have finished their programs."""
        return all(at >= len(program) for at, program in zip(self.place, self.programs, strict=True))

    def _hangs(self, rank: int) -> bool:
        stops = self.fault in ("sleep", "loader", "dead", "stopped", "dead host")
        return stops and rank in self.stopped and self.place[rank] >= self.at


def judged(trial: Trial, found: StallStacks) -> str:
    """Compare the blamed ranks with the ranks at fault. Return "right", "wrong", or "cannot tell"."""
    if trial.fault in ("store", "frozen"):
        right = {"store": "outside", "frozen": "frozen"}[trial.fault]
        return "wrong" if found.odd else "right" if found.why == right else "cannot tell"
    if trial.fault == "link":  # a broken link is not the fault of a single member
        group = trial.layout.members[trial.programs[trial.rank][trial.call].group]
        if not found.odd:
            return "right" if found.why == "unfinished" else "cannot tell"
        return "right" if set(found.odd) <= set(group) and found.why == "unfinished" else "wrong"
    if not found.odd:
        return "cannot tell"
    return "right" if frozenset(found.odd) == trial.guilty else "wrong"


def hung(layout: Layout, fault: str, chance: random.Random) -> Trial:
    """Draw random trials until the run of a trial stalls. Return this trial.

    Several draws can be necessary, because some changes to the order of operations are harmless.
    """
    while True:
        trial = Trial(layout, fault, chance)
        if fault in ("store", "frozen") or not trial.is_complete:
            return trial


class Result(msgspec.Struct):
    """The verdict on one trial."""

    layout: str
    known: str
    fault: str
    verdict: str
    confidence: float
    seconds: float


def trials(ranks: int, number: int, seed: int, layouts: Iterable[str] = LAYOUTS) -> Iterator[Result]:
    """Evaluate `number` hangs for each combination of a fault and a layout."""
    for name in layouts:
        layout = Layout(ranks, **LAYOUTS[name](ranks))
        for fault in FAULTS:
            for repeat in range(number):
                trial = hung(layout, fault, random.Random(f"{seed} {name} {fault} {repeat}"))
                for known in KNOWN:
                    parts, silent = trial.hosts(known)
                    began = time.process_time()
                    found = over_hosts(parts, silent=silent, world=ranks)
                    seconds = time.process_time() - began
                    yield Result(name, known, fault, judged(trial, found), found.confidence, seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--ranks", type=int, default=1024)
    parser.add_argument("--trials", type=int, default=3, help="number of trials of each fault in each layout")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--by-fault", action="store_true", help="print one line for each fault")
    parser.add_argument("--layout", choices=[*LAYOUTS], action="append", help="measure only this layout")
    given = parser.parse_args()
    print(f"{given.ranks:,} simulated ranks on {given.ranks // PER_HOST:,} hosts, seed {given.seed}")
    layouts = given.layout or [*LAYOUTS]
    for name in layouts:
        rows: dict[str, list[Result]] = defaultdict(list)
        for result in trials(given.ranks, given.trials, given.seed, [name]):
            rows[f"{result.known} / {result.fault}" if given.by_fault else result.known].append(result)
        for key, results in rows.items():
            print(f"{name:12} {key:26} {summary(results)}", flush=True)


def summary(results: Sequence[Result]) -> str:
    """Return a line that shows the shares of right and wrong results and the longest evaluation time."""
    shares = Counter(result.verdict for result in results)
    sure = sum(result.verdict == "wrong" and result.confidence >= 0.9 for result in results)
    right, wrong, neither = (shares[verdict] / len(results) for verdict in ("right", "wrong", "cannot tell"))
    return (
        f"{len(results):5} trials: {right:6.1%} right, {wrong:6.1%} wrong ({sure} with high confidence),"
        f" {neither:6.1%} undecided; at most {max(result.seconds for result in results):.2f} s"
    )


if __name__ == "__main__":
    main()
