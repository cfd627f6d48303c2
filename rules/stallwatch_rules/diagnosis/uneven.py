"""Find ranks that took steps at the same pace as other ranks, but whose steps ended earlier."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from statistics import median, median_high

import msgspec

from stallwatch_rules.diagnosis.findings import Streams
from stallwatch_rules.messages import Message, message
from stallwatch_rules.progress.timeline import StepClock, Timeline
from stallwatch_rules.stream import StreamReading
from stallwatch_rules.text.digest import fold_ranks

ENOUGH = 8  #: minimum number of steps that a rank must have printed before its pace is known
#: minimum distance by which other ranks must have continued after a rank's last step: this number of printed
#: steps, and this multiple of the interval between the rank's last printed steps
BEYOND = 10
#: maximum ratio between two ranks of the intervals between their steps, and of their numbers of steps
ALIKE = 2.0
MOST = 0.6  #: minimum share of the ranks that must have continued to the same step
LATE = 4  #: number of last intervals that define a rank's pace, because the middle of long logs is not read


@dataclass
class _Course:
    """The steps that one rank printed, in ascending order."""

    stream: StreamReading
    timeline: Timeline
    series: str
    steps: list[int]

    @cached_property
    def clock(self) -> StepClock:
        """The clock that shows which step this rank had reached at a given time."""
        return StepClock(self.timeline)

    @property
    def gap(self) -> int:
        """The largest of the last intervals between the steps that the rank printed."""
        return max(later - earlier for earlier, later in pairwise(self.steps[-LATE - 1 :]))


class Uneven(msgspec.Struct, frozen=True):
    """The ranks whose steps ended before those of the other ranks."""

    behind: Mapping[int, int]  #: rank → the rank's last step
    usual: int  #: the last step of most other ranks

    def note(self) -> Message:
        """Return a note such as ``rank 2 ended at step 29, before the other ranks (step 400): …``."""
        ranks, step = f"rank {fold_ranks(self.behind)}", min(self.behind.values())
        return message("diagnosis.uneven-end", ranks=ranks, step=step, others=self.usual)


def uneven_end(steps: Mapping[int | None, int]) -> Uneven | None:
    """Return the ranks of a failed or stalled run whose steps ended before those of nearly all others."""
    known = {rank: step for rank, step in steps.items() if rank is not None}
    if len(known) < 4:
        return None
    usual, count = Counter(known.values()).most_common(1)[0]
    behind = {rank: step for rank, step in known.items() if step < usual - 1}
    if not behind or count < 0.75 * len(known):
        return None
    return Uneven(behind, usual)


def ranks_left_behind(streams: Streams) -> Uneven | None:
    """Return the ranks that printed steps as regularly as the others, but stopped long before them.

    Most ranks of a healthy run print few lines, or print only at the start. Therefore, two ranks are compared
    only if they have the same step counter and the same pace until the first of them ends. In addition, most
    of the ranks must have continued. A log that begins late was truncated and is not evidence.
    """
    mains = [stream.timelines.main for (_, rank), stream in streams.items() if rank is not None]
    lasts = [main.intervals[-1].step or 0 for main in mains if main is not None and main.intervals]
    if len(lasts) < 3 or max(lasts) - min(lasts) < BEYOND:
        return None
    courses = _courses(streams)
    if len(courses) < 3:
        return None
    usual = median_high(course.steps[-1] for course in courses.values())
    gap = median_high(course.gap for course in courses.values())
    peers = [course for course in courses.values() if abs(course.steps[-1] - usual) <= ALIKE * gap]
    enough = max(2, MOST * len(courses))
    if len(peers) < enough:
        return None
    behind = {
        rank: course.steps[-1]
        for rank, course in courses.items()
        if usual - course.steps[-1] >= BEYOND * course.gap
        and sum(_ended_before(course, peer) for peer in peers) >= enough
    }
    return Uneven(behind, usual) if behind else None


def _courses(streams: Streams) -> dict[int, _Course]:
    """Return the steps of each rank, from the log with the highest step if a rank has several logs."""
    found: dict[int, _Course] = {}
    for (_, rank), stream in streams.items():
        main = stream.timelines.main
        if rank is None or main is None:
            continue
        steps = [interval.step for interval in main.intervals if interval.step is not None]
        if len(steps) < max(2, len(main.intervals)) or steps != sorted(set(steps)):
            continue  # the losses have no step numbers, or a counter restarted
        series = next(name for name, timeline in stream.timelines.by_series.items() if timeline is main)
        if rank not in found or found[rank].steps[-1] < steps[-1]:
            found[rank] = _Course(stream, main, series, steps)
    return found


def _ended_before(course: _Course, peer: _Course) -> bool:
    """Return whether a rank took steps at the pace of a peer, but its log ended long before the peer's."""
    steps, last = course.steps, course.steps[-1]
    if course.series != peer.series or course.timeline.total != peer.timeline.total or len(steps) < ENOUGH:
        return False
    beside = [step for step in peer.steps if steps[0] <= step <= last]
    beyond = sum(step > last for step in peer.steps)
    if len(beside) < 2 or len(steps) * ALIKE < len(beside) or beyond < BEYOND:
        return False
    usual = median(later - earlier for earlier, later in pairwise(beside))
    if course.gap > ALIKE * usual or abs(peer.steps[0] - steps[0]) > ALIKE * max(usual, course.gap):
        return False
    # If a rank printed output after its last step, it was still alive and merely printed no more steps.
    reached = peer.clock.at(course.stream.last_time)
    return reached is None or reached <= (last + peer.steps[-1]) / 2
