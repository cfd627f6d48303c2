"""All ranks of a stall together: those that do the same folded into one group, and the odd ones named."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from stallwatch_rules.stacks.doing import Doing, doing_of
from stallwatch_rules.stacks.flight import blamed, joined, mismatched
from stallwatch_rules.stacks.records import Asked, Condition, Frame, StackGroup, StallStacks, Why

_MOST_FRAMES = 40


def fold(ranks: Sequence[Asked], *, time: float, seconds: float = 0.0) -> StallStacks:
    """What `ranks`, one record each, tell together; `time` is when, `seconds` how long it took to learn."""
    doing = {rank.rank: doing_of(rank) for rank in ranks}
    odd, why = odd_ones(ranks, doing)
    counts = joined(ranks)
    groups: dict[tuple[object, ...], StackGroup] = {}
    for rank in sorted(ranks, key=lambda one: one.rank):
        one = _group(rank, doing[rank.rank], counts.get(rank.rank))
        key = (one.kind, one.condition, one.what, one.place, one.collective, one.note, rank.rank in odd)
        if key in groups:
            groups[key].ranks.append(rank.rank)
        else:
            groups[key] = one
    world = max((rank.recorded.world_size for rank in ranks), default=0)
    return StallStacks(
        time=time,
        seconds=round(seconds, 3),
        groups=sorted(groups.values(), key=lambda one: (one.ranks[0] in odd, -len(one.ranks), one.ranks)),
        odd=odd,
        why=why if odd else "",
        elsewhere=max(0, world - len(ranks)),
        pids={rank.rank: rank.pid for rank in ranks if rank.pid > 0},
    )


def _group(rank: Asked, doing: Doing, count: int | None) -> StackGroup:
    gone = rank.condition == "ended"
    return StackGroup(
        ranks=[rank.rank],
        kind="lock" if rank.lock_holder and doing.kind in ("code", "thread", "unknown") else doing.kind,
        condition=rank.condition,
        what="" if gone else doing.what or ("file lock" if rank.lock_holder else ""),
        place="" if gone else doing.place,
        collective=count,
        note=rank.lock_holder or (rank.kernel if rank.condition == "blocked" else ""),
        locked_out=rank.locked_out,
        frames=[line(frame) for frame in _shown(doing.frames)],
        worker=rank.worker,
        worker_frames=[line(frame) for frame in _shown(rank.worker_frames)],
    )


def _shown(frames: Sequence[Frame]) -> Sequence[Frame]:
    return frames[-_MOST_FRAMES:]


def line(frame: Frame) -> str:
    """A frame on a line of its own."""
    return f"{frame.file}:{frame.line} in {frame.function}"


def odd_ones(ranks: Sequence[Asked], doing: Mapping[int, Doing]) -> tuple[list[int], Why]:
    """The ranks that hold up the others, and how that is known, the surest first; none if all do alike."""
    for condition, why in _CONDITIONS:
        found = [rank.rank for rank in ranks if rank.condition == condition]
        if found and len(found) < len(ranks):
            return sorted(found), why
    waiting = [rank.rank for rank in ranks if doing[rank.rank].waits]
    others = sorted(rank.rank for rank in ranks if not doing[rank.rank].waits)
    behind = blamed(ranks)
    if waiting and others:
        # Of several that do something else, those that the recorder misses.
        return ([rank for rank in others if rank in behind] or others), "elsewhere"
    if waiting and (different := mismatched(ranks)):
        return different, "diverged"
    if behind and len(behind) < len(ranks):
        return behind, "behind"
    if waiting:
        odd = _other_places(waiting, doing)
        return odd, "diverged" if odd else ""
    return _other_places([rank.rank for rank in ranks], doing), "elsewhere"


_CONDITIONS: tuple[tuple[Condition, Why], ...] = (("ended", "ended"), ("stopped", "stopped"))


def _other_places(ranks: Sequence[int], doing: Mapping[int, Doing]) -> list[int]:
    """Those that do something else than most others; all of two ranks that differ, when they wait."""
    where = {rank: (doing[rank].kind, doing[rank].what, doing[rank].place) for rank in ranks}
    counts = Counter(where.values()).most_common()
    if len(counts) < 2:
        return []
    if counts[0][1] > counts[1][1]:
        return sorted(rank for rank in ranks if where[rank] != counts[0][0])
    return sorted(ranks) if all(doing[rank].waits for rank in ranks) else []
