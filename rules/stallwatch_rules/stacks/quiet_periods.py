"""Decide how long a run can be quiet before it counts as stalled, based on the activity of its ranks.

If a run shows no signs of life for longer than the learned threshold, a stall is suspected. Stallwatch then
inspects the stacks and counters of the ranks. An inspection can confirm the stall immediately, allow more
time for long activities, or show signs of life. ``docs/stalls.md`` contains a table of these decisions for
users. All durations are multiples of the floor (30 s by default). Therefore, one setting scales all
durations.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from stallwatch_rules.records import Phase
from stallwatch_rules.stacks.folding import by_host, fold, over_hosts
from stallwatch_rules.stacks.rank_activity import (
    RankActivity,
    activity_of_rank,
    caller,
    evaluates,
    own_places,
    saves,
)
from stallwatch_rules.stacks.records import RankAnswer, StallStacks

#: Allowed quiet time for an evaluation, the first batch of an epoch, the network, or a child process, as a
#: multiple of the floor.
SHORT = 6.0
LONG = 20.0  #: allowed quiet time for startup, a compilation, or a checkpoint, as a multiple of the floor

# Allowed quiet time for processor work after the last step, as a multiple of the floor.
_AFTER_TRAINING = 480.0
# Allowed quiet time for data loading, as a multiple of the floor, if it is unknown whether a batch is the
# first batch of an epoch.
_DATA_UNCOUNTED = 2.5
# Allowed quiet time for a busy rank, as a multiple of the floor. A warning appears within a minute.
_BUSY = 5 / 3
FOREVER = 1e12  #: limit of a pause in seconds; this number is finite because hosts exchange it as JSON
CRITICAL = LONG  #: multiple of the floor after which "busy without progress" becomes critical
_WORKS = 0.3  # minimum share of one processor at which a thread or a child process counts as working
_FLOWS = 1024  # minimum bytes per second of an active save, load, or download; logging causes less traffic
# Minimum bytes per second of code that processes files. Printing causes less traffic.
_WORKS_ON_FILES = 64 * 1024
_LIFE = ("steps", "batches", "epochs", "forwards", "switches", "collectives")
_OF_SAVES = ("code", "thread", "unknown", "network", "process")  # activities that can be part of a save
_TRANSFERS = ("save", "load", "import", "data", "network", "process")

Status = Literal["stalled", "waiting", "busy", "alive", "paused"]
Reason = Literal[
    "",
    "ended",
    "stopped",
    "behind",
    "suspended",
    "debugger",
    "start-up",
    "first-steps",
    "compilation",
    "save",
    "data",
    "evaluation",
    "rollout",
    "weight-sync",
    "network",
    "process",
    "others",
    "code",
    "lock",
    "busy",
    "last-step",
    "work",
]


class HostSnapshot(msgspec.Struct, frozen=True):
    """The state of all ranks on one host at one time."""

    time: float  #: time in seconds, according to the agent's clock
    ranks: Sequence[RankAnswer]


class Ruling(msgspec.Struct, frozen=True):
    """The decision about a quiet period (a time without signs of life), based on inspections of the ranks."""

    status: Status
    limit: float  #: seconds without a sign of life after which the stall is reported (`FOREVER` for a pause)
    reason: Reason = ""
    rank: int | None = None  #: the rank for which the run waits
    place: str = ""  #: location in the user's code, such as ``train.py:42 in step``
    site: str = ""  #: key under which the duration of the wait is stored (empty if it is not stored)

    def usual(self, period: QuietPeriod) -> float:
        """Return the longest wait, in seconds, that counts as a normal step if the wait ends by itself."""
        if self.status not in ("waiting", "paused") or self.reason == "first-steps":
            return math.inf
        return period.suspicion if self.reason == "others" else 0.0


class QuietPeriod(msgspec.Struct, frozen=True):
    """Information about a quiet period that is not in the snapshots. Durations are in seconds."""

    phase: Phase
    floor: float
    suspicion: float  #: the learned threshold of the phase, after which a stall can be reported
    factor: float = 3.0
    rollout: float = 7200.0  #: allowed duration of the first generation
    rhythm_known: bool = True  #: True if enough steps have been observed to estimate the duration of a step
    longest: float | None = None  #: longest quiet period in this phase that ended by itself
    sites: Mapping[str, float] = {}  #: call site → longest quiet period that ended by itself
    repeating: bool = False  #: True if the log repeats a message that it did not repeat while steps advanced
    suspended: bool = False  #: True if the whole command is stopped or frozen
    #: True if the training is complete only according to a counter that reached its total. The counter might
    #: count the steps of a part of the run.
    only_reached_total: bool = False
    worked: float = (
        0.0  #: seconds from the start of the period to the newest snapshot with work after the last step
    )
    run: Ruling | None = None  #: decision about the whole run, from the snapshots of all hosts


class HostView(msgspec.Struct, frozen=True):
    """The decision of one host, or of one of several agents on a host, about a quiet period."""

    host: str
    ruling: Ruling | None
    quiet: float  #: seconds since the last sign of life from the host
    threshold: float | None  #: the learned threshold, in seconds, of the phase of the host
    stacks: StallStacks | None  #: stacks from the latest inspection on the host


def ruling(snapshots: Sequence[HostSnapshot], period: QuietPeriod) -> Ruling | None:
    """Return the decision about a quiet period on one host.

    `snapshots` contains the newest snapshots since the period began, in the order of their times.

    Return ``None`` if the snapshots are inconclusive.
    """
    ranks = snapshots[-1].ranks if snapshots else ()
    before = snapshots[-2] if len(snapshots) > 1 else None
    if not any(rank.condition != "alive" or any(t.frames for t in rank.threads) for rank in ranks):
        return None
    doing = {rank.rank: activity_of_rank(rank) for rank in ranks}
    if period.suspended:
        return Ruling("paused", FOREVER, "suspended")
    if before is not None and _alive(before, snapshots[-1], doing, period):
        return Ruling("alive", period.suspicion)
    for condition in ("ended", "stopped") if period.phase != "idle" else ():
        found = [rank for rank in ranks if rank.condition == condition and not rank.left]
        if found and (len(found) < len(ranks) or condition == "stopped"):
            return Ruling("stalled", period.suspicion, condition, found[0].rank)
    over = period.phase == "idle" and not period.only_reached_total
    if over and not all(activity.waits for activity in doing.values()):
        return None  # work after the training can take hours
    others = [rank for rank in ranks if not doing[rank.rank].waits and rank.condition != "ended"]
    if not others:
        if all(rank.condition == "ended" for rank in ranks):
            return None  # all ranks have ended, so no rank waits
        left = [rank.rank for rank in ranks if rank.left]
        if left:  # the other ranks wait for a rank that has ended
            return Ruling("stalled", period.suspicion, "ended", left[0])
        return _all_wait(ranks, doing, period)
    stacks = fold(ranks, time=0.0)
    known = len(others) < len(ranks) or stacks.why == "behind"
    suspects = [rank for rank in others if known and rank.rank in stacks.odd] or others
    rulings = [_of_rank(rank, doing[rank.rank], snapshots, period) for rank in suspects]
    return max(rulings, key=lambda ruling: ruling.limit)


def run_ruling(
    views: Sequence[HostView],
    *,
    silent: Sequence[str] = (),
    world: int = 0,
    ranks: Mapping[str, str] | None = None,
) -> Ruling | None:
    """Combine the decisions of a run's hosts into one decision about a quiet period of the run.

    Return ``None`` if these decisions are inconclusive.

    If all ranks of a host wait, the host cannot decide alone, because it does not know the activities of
    ranks on other hosts. `ranks` maps each known host to its ranks, in the form of ``spans_of``.
    """
    rulings = [view.ruling for view in views if view.ruling is not None and view.stacks is not None]
    if not views or len(rulings) < len(views) or any(ruling.status == "alive" for ruling in rulings):
        return None
    inspected = by_host((view.host, view.stacks) for view in views if view.stacks is not None)
    stacks = over_hosts(inspected, silent=silent, world=world, ranks=ranks)
    # A host whose ranks all wait might regard its ranks as the whole run.
    undecided = ("others", None), ("behind", None)
    decided = [ruling for ruling in rulings if (ruling.reason, ruling.rank) not in undecided]
    if decided:
        missed = [ruling for ruling in decided if ruling.rank in stacks.odd]
        return max(missed or decided, key=lambda ruling: ruling.limit)
    limit = max((view.threshold for view in views if view.threshold is not None), default=None)
    if limit is None or (stacks.elsewhere and not silent):
        return None
    rank = stacks.odd[0] if stacks.odd else None
    place = next((group.place for group in stacks.groups if rank in group.ranks), "")
    return Ruling("stalled", limit, "behind", rank, place)


def _same_process(rank: RankAnswer, snapshot: HostSnapshot | None) -> RankAnswer | None:
    """Return the record of the same process in another snapshot, or ``None`` if there is no such record."""
    ranks = snapshot.ranks if snapshot is not None else ()
    return next((other for other in ranks if (other.rank, other.pid) == (rank.rank, rank.pid)), None)


def _alive(
    before: HostSnapshot, now: HostSnapshot, doing: Mapping[int, RankActivity], period: QuietPeriod
) -> bool:
    """Return whether, between two snapshots, a counter of any rank advanced or any rank transferred data."""
    for rank in now.ranks:
        earlier = _same_process(rank, before)
        if earlier is None:
            continue
        kind = doing[rank.rank].kind
        signs = (name for name in _LIFE if name != "forwards" or kind != "rollout")
        # During a rollout, forward passes are not signs of life, because a generation can run them endlessly.
        if any(_has_grown(rank, earlier, name) for name in signs):
            return True
        seconds = max(1.0, now.time - before.time)
        saving = kind == "process" and _saving(doing[rank.rank], period)
        if saving and _child_transfers(rank, earlier, seconds):
            return True
        transfers = kind in _TRANSFERS or period.phase in ("init", "save")
        if period.repeating and kind not in ("save", "load"):
            continue  # the repeated message can be the cause of the transferred bytes
        moved = (rank.transferred or 0) - (earlier.transferred or sys.maxsize)
        if moved > (_FLOWS if transfers else _WORKS_ON_FILES) * seconds:
            return True
    return False


def _has_grown(rank: RankAnswer, before: RankAnswer, name: str) -> bool:
    return rank.counters.get(name, 0.0) > before.counters.get(name, float("inf"))


def _saving(doing: RankActivity, period: QuietPeriod) -> bool:
    return period.phase == "save" or saves(doing.frames)


def _all_wait(
    ranks: Sequence[RankAnswer], doing: Mapping[int, RankActivity], period: QuietPeriod
) -> Ruling | None:
    """Decide about a host on which all ranks wait, either for each other or for ranks on other hosts."""
    first = doing[ranks[0].rank]
    world = max(rank.recorded.world_size for rank in ranks)
    if period.run is not None and world > len(ranks):
        return period.run
    if all(activity.kind == "joining" for activity in doing.values()):
        return _patience(period, LONG, "start-up", None, first, varies=True)
    stacks = fold(ranks, time=0.0)
    odd = stacks.odd
    if odd and stacks.why in ("behind", "diverged", "unfinished"):
        return Ruling("stalled", period.suspicion, "behind", odd[0], doing[odd[0]].place)
    if period.phase == "idle" and not period.only_reached_total:
        return None
    if period.phase == "train" and not period.rhythm_known:
        return _patience(period, LONG, "first-steps", None, first)
    if world > len(ranks) or period.phase != "train":
        return _patience(period, LONG if period.phase == "save" else SHORT, "others", None, first)
    return Ruling("stalled", period.suspicion, "behind", odd[0] if odd else None, first.place)


def _of_rank(
    rank: RankAnswer, doing: RankActivity, snapshots: Sequence[HostSnapshot], period: QuietPeriod
) -> Ruling:
    """Decide about a rank that does not wait for other ranks, based on its state in the newest snapshot."""
    kind, number = doing.kind, rank.rank
    previous = snapshots[-2] if len(snapshots) > 1 else None
    before = _same_process(rank, previous)
    seconds = snapshots[-1].time - previous.time if previous is not None else 0.0
    evaluating = period.phase == "eval" or evaluates(doing.frames)
    if kind == "debugger":
        return Ruling("paused", FOREVER, "debugger", number, doing.place)
    if kind == "save" or (kind in _OF_SAVES and _saving(doing, period)):
        within = period.longest if period.phase == "save" and kind != "save" else None
        known = rank.saves.get(caller(doing), within)
        return _patience(period, LONG, "save", number, doing, known=known)
    if kind == "compile":
        return _patience(period, LONG, "compilation", number, doing, varies=True)
    if kind in ("load", "import"):
        return _patience(period, LONG, "start-up", number, doing, varies=True)
    if not period.rhythm_known and kind != "rollout":
        return _patience(period, LONG, "first-steps", number, doing)
    if kind == "data":
        first = rank.counters.get("epoch_batches")
        if evaluating or first == 0 or period.phase == "idle":
            return _patience(period, SHORT, "evaluation" if evaluating else "data", number, doing)
        if first is None:
            return _patience(period, _DATA_UNCOUNTED, "data", number, doing)
        return Ruling("stalled", period.suspicion, "data", number, doing.place)
    if kind == "rollout":
        known = period.longest if period.phase == "rollout" else None
        limit = period.factor * known if known is not None else period.rollout
        if before is not None and _has_grown(rank, before, "forwards"):
            limit = max(limit, LONG * period.floor)
        return Ruling("waiting", max(period.suspicion, limit), "rollout", number, doing.place, _site(doing))
    if kind == "network":
        return _patience(period, SHORT, "network", number, doing)
    if kind == "process" and _child_works(rank, before, seconds):
        return _patience(period, SHORT, "process", number, doing)
    if evaluating:
        return _patience(period, SHORT, "evaluation", number, doing, known=period.longest)
    if period.phase in ("rollout", "weight-sync"):
        return _patience(period, SHORT, period.phase, number, doing, known=period.longest)
    if period.phase == "idle":
        works = _processor_share(rank.processor, before.processor if before else None, seconds) >= _WORKS
        works = works or (before is not None and _child_works(rank, before, seconds))
        if works:
            return _patience(period, _AFTER_TRAINING, "work", number, doing)
        rests = _patience(period, SHORT, "last-step", number, doing)
        return msgspec.structs.replace(rests, limit=rests.limit + period.worked)
    if kind == "lock" or rank.lock_holder:
        return Ruling("stalled", period.suspicion, "lock", number, doing.place)
    computes = kind in ("code", "reward", "thread", "unknown") and _computes(rank, doing, snapshots)
    if computes and not period.repeating:
        return _patience(period, _BUSY, "busy", number, doing, status="busy")
    return Ruling("stalled", period.suspicion, "code", number, doing.place, _site(doing))


def _patience(
    period: QuietPeriod,
    floors: float,
    reason: Reason,
    rank: int | None,
    doing: RankActivity,
    *,
    known: float | None = None,
    status: Status = "waiting",
    varies: bool = False,
) -> Ruling:
    """Return the decision that the run is allowed to wait longer.

    The limit is `floors` times the floor if the call site is not known yet. At a known call site, the limit
    is a multiple of the longest duration so far. This limit can be shorter than `floors` times the floor,
    unless the duration `varies` between calls.
    """
    site = "" if reason == "first-steps" else _site(doing)  # the duration of a step is not known yet
    seen = [length for length in (period.sites.get(site), known) if length is not None]
    least = floors * period.floor if varies or not seen else period.floor
    limit = max(least, period.factor * max(seen, default=0.0), period.suspicion)
    return Ruling(status, limit, reason, rank, doing.place, site)


def _site(doing: RankActivity) -> str:
    """Return a key for a call site.

    The key consists of the activity and the user's function that contains the call.
    """
    return f"{doing.kind} {doing.what} {doing.place.rpartition(' in ')[2]}"


def _processor_share(now: float | None, before: float | None, seconds: float) -> float:
    return (now - before) / seconds if now is not None and before is not None and seconds > 0 else 0.0


def _child_works(rank: RankAnswer, before: RankAnswer | None, seconds: float) -> bool:
    if before is None:
        return rank.children is not None
    works = _processor_share(rank.children, before.children, seconds) >= _WORKS
    return works or _child_transfers(rank, before, seconds)


def _child_transfers(rank: RankAnswer, before: RankAnswer, seconds: float) -> bool:
    """Return whether child processes that were in the earlier snapshot transferred data.

    New child processes are ignored, because they can be retries.
    """
    then = before.children_transferred
    moved = sum(size - then[pid] for pid, size in rank.children_transferred.items() if pid in then)
    return moved > _WORKS_ON_FILES * seconds


def _computes(rank: RankAnswer, doing: RankActivity, snapshots: Sequence[HostSnapshot]) -> bool:
    """Return whether a rank computes: its thread uses a processor, and its place in the user's code changes.

    A loop often shows the same line in several snapshots, so the place is compared with all snapshots. If
    there are no other ranks, the use of a processor is sufficient. If there are other ranks, a rank can also
    use a processor while it waits for a device, which waits for the other ranks.
    """
    earlier = [
        (rank_before, snapshots[-1].time - snapshot.time)
        for snapshot in snapshots[:-1]
        if (rank_before := _same_process(rank, snapshot)) is not None
    ]
    if not earlier:
        return False
    oldest, seconds = earlier[0]
    if _processor_share(rank.processor, oldest.processor, seconds) < _WORKS:
        return False
    if len(snapshots[-1].ranks) == 1 and rank.recorded.world_size <= 1:
        return True
    place = own_places(doing.frames)
    return any(own_places(activity_of_rank(rank_before).frames) != place for rank_before, _ in earlier)
