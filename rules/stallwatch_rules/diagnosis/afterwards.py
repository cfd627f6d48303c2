"""How much of a training came after a line: told by its own stream's order, else by the clock."""

from __future__ import annotations

from collections.abc import Mapping

from stallwatch_rules.diagnosis.causes import Stream
from stallwatch_rules.progress.timeline import CLOCK_STEP, StepClock, Timeline
from stallwatch_rules.records import Line
from stallwatch_rules.stream import StreamReading


def steps_after(stream: StreamReading, line: Line, advances: int, clock: StepClock) -> int:
    """Steps that followed a line of a stream which had made so many ``advances`` by then.

    The order of lines in one stream is certain, their times are not: loggers of one process may write local
    time, UTC or no date. Where the line claims to be older than a step above it, its time says nothing, and
    the order of the lines in one file tells. After a restart of all workers the run's steps are every rank's.
    """
    own = max(0, stream.timelines.advances - advances, clock.restarted(line), clock.all_below(line))
    time = stream.when(line)
    done = _time_of_step(stream.timelines.main, advances)
    if time is not None and done is not None and time < done - CLOCK_STEP:
        return own
    below = clock.below(line, time) if time is not None else None
    return max(own, clock.after(time) if below is None else below)


def answers_after(key: Stream, answers: int, streams: Mapping[Stream, StreamReading]) -> int:
    """Answers that an inference server gave after a line before which there were so many.

    None in a trainer's log: the server beside it may go on answering when the trainer has died.
    """
    if any(name == key[0] and stream.last_advance is not None for (name, _), stream in streams.items()):
        return 0
    return streams[key].answers - answers


def _time_of_step(timeline: Timeline | None, advances: int) -> float | None:
    """When the last step known to be within so many advances was done."""
    found, done = None, 0
    for interval in timeline.intervals if timeline is not None else ():
        done += interval.span
        if done > advances:
            break
        found = interval.time if interval.time is not None else found
    return found
