"""Find ranks that took steps at the same pace as other ranks but whose steps ended earlier."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from statistics import median, median_high

import msgspec
from msgspec.structs import replace

from stallwatch_rules.diagnosis.findings import RuleFinding, Streams
from stallwatch_rules.diagnosis.outside_end import last_unknown_line, with_differing_line
from stallwatch_rules.messages import Message, message, without_sentence
from stallwatch_rules.progress.timeline import StepClock, Timeline
from stallwatch_rules.records import Line
from stallwatch_rules.stream import SOURCE, StreamReading
from stallwatch_rules.text.digest import some_ranks, span_of_steps

ENOUGH = 8  #: minimum number of steps that a rank must have printed before its pace is known
#: Minimum number of steps that other ranks must have printed after a rank's last step. This number is also
#: the minimum distance to the other ranks, as a multiple of the interval between the rank's last printed
#: steps.
BEYOND = 10
#: Maximum ratio between the step intervals of two ranks, and between their numbers of steps.
ALIKE = 2.0
MOST = 0.6  #: minimum share of the ranks that must have continued to the same step
LATE = 4  #: number of latest intervals that define a rank's pace, because long logs are not read completely
FEW = 1 / 8  #: maximum share of the ranks for which the other ranks wait (always at least one rank)


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

    @property
    def is_buffered(self) -> bool:
        """True if the last steps arrived at the same time, so an output buffer might contain more steps."""
        times = [interval.time for interval in self.timeline.intervals[-ENOUGH:]]
        return len(times) == ENOUGH and times[0] is not None and len(set(times)) == 1


class Uneven(msgspec.Struct, frozen=True):
    """The ranks whose steps ended before the steps of the other ranks."""

    behind: Mapping[int, int]  #: rank → the rank's last step
    usual: int  #: the last step of most other ranks

    def note(self, key: str = "uneven-end") -> Message:
        """Return a note such as ``Rank 2 ended at step 29, before the other ranks (step 400): …``."""
        ranks, step = some_ranks(self.behind), span_of_steps(self.behind.values())
        return message(f"diagnosis.{key}", ranks=ranks, step=step, others=self.usual)


def ranks_held_up(streams: Streams, steps: Mapping[int | None, int]) -> Uneven | None:
    """Return the few ranks whose steps ended early, so that all other ranks wait for them.

    All ranks must print their steps, and the last steps of the other ranks must differ by at most one printed
    step. `steps` contains the last step of each rank, including ranks whose logs were not read because they
    are identical to the log of another rank.
    """
    courses = _courses(streams)
    kinds = {(course.series, course.timeline.total) for course in courses.values()}
    known = sorted((step, rank) for rank, step in steps.items() if rank is not None)
    logged = {rank for source, rank in streams if rank is not None and source != SOURCE}
    if len(known) < 3 or len(kinds) != 1 or not logged <= courses.keys():
        return None
    gap = max(course.gap for course in courses.values())
    for count in range(1, max(1, int(len(known) * FEW)) + 1):
        (lowest, _), (highest, _) = known[count], known[-1]
        if known[count - 1][0] + gap <= lowest and highest - lowest <= gap:
            buffered = any(course.is_buffered for course in courses.values())
            return None if buffered else Uneven({rank: step for step, rank in known[:count]}, highest)
    return None


def with_place(stall: RuleFinding, held_up: Uneven | None, streams: Streams) -> RuleFinding:
    """Point a stall's finding to the ranks that hold up the run, instead of to the run's last step.

    These ranks are `held_up`, or else the few ranks whose last line differs. If no rank differs, the finding
    points to no rank, because it is a matter of chance which rank printed the last step.
    """
    where = stall.where
    if held_up is not None:
        rank, step = min(held_up.behind.items())
        lines = [
            (stream.index, line)
            for (_, of), stream in streams.items()
            if of == rank and (line := last_unknown_line(stream) or stream.last_advance) is not None
        ]
        where = max(lines, key=lambda each: each[0])[1] if lines else Line("", "", 0, rank)
        note = without_sentence(stall.note, "diagnosis.nothing-says-why") + held_up.note("stopped-behind")
        return replace(stall, where=where, step=step, note=note)
    found = with_differing_line(stall, streams)
    stepped = {rank for (_, rank), stream in streams.items() if stream.last_advance is not None}
    if found.where is where and where is not None and len(stepped) > 1:
        return replace(found, where=Line(where.text, "", 0, None, where.time, zoned=where.zoned))
    return found


def uneven_end(streams: Streams, steps: Mapping[int | None, int]) -> Uneven | None:
    """Return the ranks of a failed or stalled run that stopped before nearly all other ranks."""
    known = {rank: step for rank, step in steps.items() if rank is not None}
    if len(known) < 4:
        return None
    usual, count = Counter(known.values()).most_common(1)[0]
    behind = {rank: step for rank, step in known.items() if usual - step >= 2}
    if not behind or count < 0.75 * len(known):
        return None
    courses = _courses(streams)
    for rank in behind.keys() & courses.keys():
        if usual - behind[rank] < courses[rank].gap:  # the rank prints few of its steps
            del behind[rank]
    return Uneven(behind, usual) if behind else None


def ranks_left_behind(streams: Streams) -> Uneven | None:
    """Return the ranks whose steps were as regular as those of other ranks but ended much earlier.

    Most ranks of a healthy run print few lines or print only at the start. Therefore, two ranks are compared
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
    """Return the steps of each rank. If a rank has several logs, use the log that has the highest step."""
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
    """Return whether a rank took steps at a peer's pace, but its log ended long before the peer's log."""
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
    # If a rank printed output after its last step, the rank was still alive but printed no more steps.
    reached = peer.clock.at(course.stream.last_time)
    return reached is None or reached <= (last + peer.steps[-1]) / 2
