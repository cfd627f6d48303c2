"""Measure the time since the last step of a run and determine whether the run is stalled."""

from __future__ import annotations

import math
import operator
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from typing import NamedTuple

import msgspec

from stallwatch_rules.diagnosis.findings import Streams
from stallwatch_rules.lines.stamps import elapsed
from stallwatch_rules.progress.threshold import ENOUGH, StallThresholds
from stallwatch_rules.progress.tracker import ProgressTracker
from stallwatch_rules.records import Line, Phase
from stallwatch_rules.stream import ACTIVITY_SECONDS, StreamReading
from stallwatch_rules.text.display import latest

ALIVE = 5  #: minimum number of lines after a gap in the log that show that the run worked during the gap
NOTIFIED = 3.0  #: if few waits are known, a wait is a stall only if it exceeds this multiple of the step time

#: Maximum time in seconds for which a bar can stay at one step, for example, during a save.
LONGEST_WAIT = 1200.0
FIRST_LINES = 3  #: number of lines at the start of a log that a program prints only when it starts

#: A log begins in the middle of a run if the first step in the log exceeds this multiple of the steps between
#: two samples.
MID_RUN = 10
ZONES = 1800.0  #: smallest difference between two time zones, in seconds

#: If the difference between two clocks is a multiple of ``ZONES``, plus or minus this number of seconds, the
#: clocks can be in different time zones.
BY_CHANCE = 300.0


class ExternalEnd(NamedTuple):
    """The time at which something outside the run, such as a user, ended the processes of the run."""

    time: float
    #: True if the time is from the clock of the process that ended the run. This clock can be in a
    #: different time zone.
    other_clock: bool


class RunClock(msgspec.Struct, frozen=True):
    """The times of the latest events of a run, and whether the last step was completed too long ago."""

    threshold: float  #: seconds without a step after which a run counts as stalled
    silence: float | None  #: seconds from the last step to the end of the log, or to the current time
    #: True if the log has a gap longer than the threshold after the last step, and few lines follow the gap.
    silent: bool
    last_advance: Line | None
    last_sign: float | None = None  #: time of the last step, according to the log's clock
    ended: bool = False  #: True if the run stalled and something outside the run then ended it


def read_clock(
    streams: Streams,
    tracker: ProgressTracker,
    now: float | None = None,
    threshold: float | None = None,
    *,
    by_hand: bool = False,
    stopped: float | None = None,
    ended: ExternalEnd | None = None,
) -> RunClock:
    """Return when the run last completed a step, and how much time has passed since then.

    Lines after `ended` do not show that the run is alive. `stopped` is the time at which a user stopped the
    run. The time that a rank waits after `stopped` does not count.
    """
    if threshold is None:
        threshold = learnt_threshold(tracker)
    advanced = [stream for stream in streams.values() if stream.last_advance is not None]
    lines = [stream.last_advance for stream in advanced if stream.last_advance is not None]
    last_advance = latest(lines) if lines else None
    signed = [(time, stream) for stream in advanced if (time := _last_sign(stream)) is not None]
    times = [time for time, _ in signed]
    if not times or len(times) < len(advanced):
        if times or now is not None or not advanced:
            return RunClock(threshold, None, False, last_advance)
        if tracker.waited > max(threshold, LONGEST_WAIT):
            return RunClock(threshold, tracker.waited, True, last_advance)
        beyond = _unaccounted(streams, tracker)
        return RunClock(threshold, beyond, (beyond or 0.0) > 2 * threshold, last_advance)
    ends = [stream.last_time for stream in streams.values() if stream.last_time is not None]
    _, leader = max(
        signed, key=lambda sign: (sign[0], sign[1].rank is None, -(sign[1].rank or 0), sign[1].source)
    )
    later = leader.last_time + leader.turned_back if leader.last_time is not None else -math.inf
    end = now if now is not None else max(*ends, later)
    if stopped is not None and max(times) <= stopped < end:
        end = stopped
    between = operator.sub if now is not None or leader.last_zoned else lambda end, start: elapsed(start, end)
    silence = max(0.0, between(end, max(times)))
    if ended is not None and now is None and _silent_until(ended, max(times), streams, threshold):
        return RunClock(threshold, ended.time - max(times), True, last_advance, max(times), ended=True)
    if silence <= threshold:
        return RunClock(threshold, silence, False, last_advance, max(times))
    signs: Counter[int] = Counter()
    for stream in streams.values():
        signs.update(stream.activity)
    alive = sys.maxsize if by_hand else ALIVE
    silent = _falls_silent(max(times), end, signs, threshold, alive, between)
    silent = silent and (now is not None or not _starts_again(leader, max(times), threshold))
    return RunClock(threshold, silence, silent, last_advance, max(times))


def learnt_threshold(tracker: ProgressTracker) -> float:
    """Return the stall threshold at the end of a complete log, learned from the waits in the log."""
    phase: Phase = "idle" if tracker.surely_finished else tracker.phase
    thresholds = StallThresholds()
    thresholds.log_only = True
    thresholds.replay({"train": tracker.durations("train"), phase: tracker.durations(phase)}, tracker.stride)
    threshold = thresholds.at_end(phase)
    if len(tracker.durations(phase)) < ENOUGH:
        threshold = max(threshold, NOTIFIED * max(tracker.step_seconds()[-50:], default=0.0))
    return threshold


def _silent_until(ended: ExternalEnd, start: float, streams: Streams, threshold: float) -> bool:
    """Return whether the log has a gap longer than the threshold before the run was ended from outside.

    A process that has been ended can still print lines before the log reports its end.
    """
    until = ended.time - 4 * ACTIVITY_SECONDS
    moments = [sign * ACTIVITY_SECONDS for stream in streams.values() for sign in stream.activity]
    last = max([start, *(moment for moment in moments if moment < until)])
    if min([ended.time, *(moment for moment in moments if moment >= until)]) - last <= threshold:
        return False
    silence = ended.time - last
    off = abs(silence - ZONES * round(silence / ZONES))
    return not ended.other_clock or off > min(threshold, BY_CHANCE)


def begins_in_mid_run(tracker: ProgressTracker) -> bool:
    """Return whether the log begins in the middle of a run, based on the first step in the log."""
    first, last, known = tracker.first_step, tracker.last_step, len(tracker.step_seconds())
    if first is None or last is None or not known:
        return False
    return first > MID_RUN * max(1.0, (last - first) / max(known - 1, 1))


def _unaccounted(streams: Streams, tracker: ProgressTracker) -> float | None:
    """If the steps of a log have no times, return the time span of the log minus the durations of the steps.

    Return ``None`` unless the log begins in the middle of a run and ends with an evaluation. If a log begins
    at the start of a run, its time span also includes the work before the first step, which can take hours.
    """
    firsts = [stream.first_time for stream in streams.values() if stream.first_time is not None]
    ends = [stream.last_time for stream in streams.values() if stream.last_time is not None]
    if not firsts or tracker.phase != "eval" or not begins_in_mid_run(tracker):
        return None
    return max(0.0, max(ends) - min(firsts) - sum(tracker.step_seconds()))


def _last_sign(stream: StreamReading) -> float | None:
    """Return the time of the stream's last step.

    If the line of the step has no time, the time of the next line is used.
    """
    done = stream.when(stream.last_advance)
    return done if done is not None else stream.after_time


def _starts_again(stream: StreamReading, since: float, threshold: float) -> bool:
    """Return whether one of the first lines of the log recurs after a long gap in the log.

    Such a line shows that the program was restarted. A stalled program does not restart by itself, so the gap
    was not a stall.
    """
    entries = stream.templates.entries.values()
    first = (entry for entry in entries if entry.index < FIRST_LINES and entry.count > 1)
    again = (stream.when(entry.last) for entry in first)
    return any(time is not None and time - since > threshold for time in again)


def _falls_silent(
    start: float,
    end: float,
    signs: Mapping[int, int],
    threshold: float,
    alive: int,
    between: Callable[[float, float], float],
) -> bool:
    """Return whether the log has a gap longer than the threshold, with only a few lines after it.

    Many lines follow an evaluation that prints nothing or a slow save. Only a few lines follow a hang, unless
    a user ended the run.
    """
    moments = {sign * ACTIVITY_SECONDS: count for sign, count in signs.items()}
    marks = [start, *sorted(moment for moment in moments if start < moment < end), end]
    gaps = [index for index in range(1, len(marks)) if between(marks[index], marks[index - 1]) > threshold]
    if not gaps:
        return False
    resumed = marks[gaps[-1]] - ACTIVITY_SECONDS
    return sum(count for moment, count in moments.items() if moment >= resumed) < alive
