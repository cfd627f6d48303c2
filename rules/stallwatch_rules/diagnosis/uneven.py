"""Ranks whose steps ended before the others': what the last step of each rank tells, and its way there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from statistics import median, median_high

from stallwatch_rules.diagnosis.findings import Streams
from stallwatch_rules.progress.timeline import StepClock, Timeline
from stallwatch_rules.stream import StreamReading
from stallwatch_rules.text.digest import fold_ranks
from stallwatch_rules.text.sentences import say

ENOUGH = 8  #: steps that a rank must have printed, for its rhythm to be known
BEYOND = 10  #: times its own widest gap that the others went on, each with as many lines
ALIKE = 2.0  #: a rank's widest gap may be so many times the others' usual one
MOST = 0.6  #: share of the ranks that must have come to the same end


@dataclass(frozen=True)
class _Course:
    """The steps that one rank printed, in their order."""

    stream: StreamReading
    timeline: Timeline
    series: str
    steps: list[int]

    @property
    def widest(self) -> int:
        return max(later - earlier for earlier, later in pairwise(self.steps))


def uneven_end(steps: Mapping[int | None, int], language: str) -> str:
    """The ranks of a run that failed or stands whose steps ended before nearly all others': look there."""
    known = {rank: step for rank, step in steps.items() if rank is not None}
    if len(known) < 4:
        return ""
    usual, count = Counter(known.values()).most_common(1)[0]
    behind = {rank: step for rank, step in known.items() if step < usual - 1}
    if not behind or count < 0.75 * len(known):
        return ""
    return _told(behind, usual, language)


def went_on_without(streams: Streams, language: str) -> str:
    """The ranks that printed as regularly as the others and then no more, while those went on for long.

    Most ranks of a healthy run print little, or only at the start: so it takes the same counter, the same
    rhythm until then, and most of the ranks beyond it. A log that begins late was cut, and tells nothing.
    """
    courses = _courses(streams)
    if len(courses) < 3:
        return ""
    usual = median_high(course.steps[-1] for course in courses.values())
    gap = median_high(course.widest for course in courses.values())
    peers = [course for course in courses.values() if abs(course.steps[-1] - usual) <= ALIKE * gap]
    if len(peers) < 2 or len(peers) < MOST * len(courses):
        return ""
    behind = {
        rank: course.steps[-1]
        for rank, course in courses.items()
        if all(_ended_before(course, peer) for peer in peers)
    }
    return _told(behind, usual, language) if behind else ""


def _told(behind: Mapping[int, int], usual: int, language: str) -> str:
    ranks = f"rank {fold_ranks(behind)}"
    return say("uneven-end", language, ranks=ranks, step=min(behind.values()), others=usual)


def _courses(streams: Streams) -> dict[int, _Course]:
    """The course of each rank in the log where it came farthest: logs are rotated, runs are restarted."""
    found: dict[int, _Course] = {}
    for (_, rank), stream in streams.items():
        main = stream.timelines.main
        if rank is None or main is None:
            continue
        steps = [one.step for one in main.intervals if one.step is not None]
        rising = all(later > earlier for earlier, later in pairwise(steps))
        if len(steps) < max(2, len(main.intervals)) or not rising:
            continue  # losses without step numbers, or a counter that began anew
        series = next(name for name, one in stream.timelines.by_series.items() if one is main)
        if rank not in found or found[rank].steps[-1] < steps[-1]:
            found[rank] = _Course(stream, main, series, steps)
    return found


def _ended_before(course: _Course, peer: _Course) -> bool:
    """Whether one rank kept the other's rhythm until its log ended, and the other went on for long."""
    own, last = course.steps, course.steps[-1]
    if course.series != peer.series or course.timeline.total != peer.timeline.total or len(own) < ENOUGH:
        return False
    beside = [step for step in peer.steps if own[0] <= step <= last]
    beyond = sum(step > last for step in peer.steps)
    if len(beside) < 2 or own[0] > beside[0] + course.widest or peer.steps[0] < own[0] - course.widest:
        return False
    usual = median(later - earlier for earlier, later in pairwise(beside))
    if course.widest > ALIKE * usual:
        return False
    if beyond < BEYOND or peer.steps[-1] - last < BEYOND * course.widest:
        return False
    # What a rank said later than its last step shows that it was there and printed no more steps.
    reached = StepClock(peer.timeline).at(course.stream.last_time)
    return reached is None or reached <= (last + peer.steps[-1]) / 2
