"""All ranks of a stall together: those that do the same folded into one group, and the odd ones named."""

from __future__ import annotations

from collections.abc import Sequence

from stallwatch_rules.stacks.blame import odd_ones
from stallwatch_rules.stacks.doing import Doing, doing_of
from stallwatch_rules.stacks.flight import joined
from stallwatch_rules.stacks.records import Asked, Frame, StackGroup, StallStacks

_MOST_FRAMES = 40


def fold(ranks: Sequence[Asked], *, time: float, seconds: float = 0.0, file: str = "") -> StallStacks:
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
        file=file,
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
