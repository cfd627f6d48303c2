"""A run's rhythm by the clock: how long it has been silent, and how long is too long for it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from stallwatch_rules.findings import Streams
from stallwatch_rules.progress import ProgressTracker, stall_threshold
from stallwatch_rules.records import Line
from stallwatch_rules.reported import latest
from stallwatch_rules.stream import ACTIVITY_SECONDS

ALIVE = 10  #: signs of life after a silence that show that it was none


@dataclass(frozen=True)
class RunClock:
    """When something happened last."""

    threshold: float  #: seconds without a step that are too many
    silence: float | None  #: seconds from the last step to the end of the log, or to now
    silent: bool  #: the log falls silent after the last step for longer than the threshold
    last_advance: Line | None
    last_line: Line | None = None


def read_clock(
    streams: Streams, tracker: ProgressTracker, now: float | None, threshold: float | None
) -> RunClock:
    """The clock of these streams. ``now`` is given by who watches live; else the log's end counts."""
    if threshold is None:
        threshold = stall_threshold(tracker.durations(tracker.phase))
    advanced = [stream for stream in streams.values() if stream.last_advance is not None]
    lines = [stream.last_advance for stream in advanced if stream.last_advance is not None]
    last_advance = latest(lines) if lines else None
    times = [time for stream in advanced if (time := stream.when(stream.last_advance)) is not None]
    if not times or len(times) < len(advanced):
        return RunClock(threshold, None, False, last_advance)
    ends = [stream.last_time for stream in streams.values() if stream.last_time is not None]
    end = now if now is not None else max(ends)
    silence = max(0.0, end - max(times))
    if silence <= threshold:
        return RunClock(threshold, silence, False, last_advance)
    signs = {sign for stream in streams.values() for sign in stream.activity}
    return RunClock(threshold, silence, _falls_silent(max(times), end, signs, threshold), last_advance)


def _falls_silent(start: float, end: float, signs: Iterable[int], threshold: float) -> bool:
    """Whether there is a gap longer than the threshold, and hardly any life after it."""
    times = sorted(time for sign in signs if start < (time := (sign + 1) * ACTIVITY_SECONDS) < end)
    marks = [start, *times, end]
    gaps = [index for index in range(1, len(marks)) if marks[index] - marks[index - 1] > threshold]
    return bool(gaps) and len(marks) - 1 - gaps[-1] < ALIVE
