"""If the clock of a host is wrong or a time is outdated, correct the times of failures.

The offsets between hosts' clocks are estimated from events that several hosts logged at the same moment.

In synchronous training, all ranks finish a step together, and a collective times out on all ranks at once. If
a host logs these events earlier or later than the other hosts, always by the same amount, the host's clock is
wrong.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from heapq import nsmallest
from statistics import median, median_low
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from stallwatch_rules.diagnosis.findings import Streams
from stallwatch_rules.failures.crashes import CrashReader
from stallwatch_rules.failures.tracebacks import TracebackReader
from stallwatch_rules.progress.timeline import StreamTimelines, Timeline
from stallwatch_rules.records import Line
from stallwatch_rules.stream import ACTIVITY_SECONDS, AGED_STEPS, Key, StreamReading
from stallwatch_rules.text.lazy import lazy

MATTERS = 2.0  #: minimum clock error, in seconds, for which times are corrected
LEAST = 2  #: minimum number of events that a host must have in common with other hosts
STEADY = 1.0  #: maximum median deviation of a clock's offsets, in seconds, for which the clock is corrected
SHARE = 0.1  #: maximum median deviation as a share of the clock error; the larger of the two maximums applies
STREAMS = 4  #: maximum number of streams to read for each host; all ranks of a host share one clock

_FAILURES = ("hits", "exceptions", "tracebacks", "crashes")  # fields of a stream that contain failures
_WORK = lazy(r"\bSeqNum=(\d{1,12}), ?OpType=(\w{1,40})")


class Event(NamedTuple):
    """An event that occurs on several hosts at once, as one host logged it."""

    what: Hashable
    host: str
    time: float


def clocks_ahead(events: Iterable[Event]) -> dict[str, float]:
    """For hosts with a steady and relevant clock offset, return the seconds by which each clock is ahead."""
    logged: dict[Hashable, dict[str, list[float]]] = {}
    for event in events:
        logged.setdefault(event.what, {}).setdefault(event.host, []).append(event.time)
    apart: dict[str, list[float]] = {}
    for hosts in logged.values():
        if len(hosts) > 1:
            times = {host: median(every) for host, every in hosts.items()}
            usual = median_low(times.values())
            for host, time in times.items():
                apart.setdefault(host, []).append(time - usual)
    ahead = {host: median(every) for host, every in apart.items() if len(every) >= LEAST}
    return {
        host: by
        for host, by in ahead.items()
        if abs(by) > MATTERS
        and median(abs(offset - by) for offset in apart[host]) <= max(STEADY, SHARE * abs(by))
    }


def events_of(streams: Streams, hosts: Mapping[Key, str]) -> Iterator[Event]:
    """Yield the events that can be compared across hosts: finished steps, and timeouts of collectives."""
    counts: dict[str, int] = {}
    for key, stream in sorted(streams.items(), key=lambda item: (item[0][1] or 0, item[0][0])):
        host = hosts.get(key)
        if host is None or counts.get(host, 0) == STREAMS:
            continue
        counts[host] = counts.get(host, 0) + 1
        main = stream.timelines.main
        if main is not None and not main.backs:
            for interval in main.intervals:
                if interval.step is not None and interval.time is not None:
                    yield Event(("step", interval.step), host, interval.time)
        for hits in stream.hits.values():
            line = hits.first.line
            time, work = stream.when(line), _WORK.search(line.text)
            if time is not None and work is not None:
                yield Event(work.groups(), host, time)


def on_one_clock(streams: Streams, hosts: Mapping[Key, str], ahead: Mapping[str, float]) -> Streams:
    """Return the streams with corrected times for the hosts whose clocks are ahead or behind."""
    if not ahead:
        return streams
    return {
        key: _corrected(stream, by) if (by := ahead.get(hosts.get(key, ""))) is not None else stream
        for key, stream in streams.items()
    }


def without_outdated_times(streams: Streams) -> Streams:
    """Return the streams without the failure times that were carried over from much earlier lines.

    A rank that prints few lines advances together with the ranks that print the steps. Therefore, the time
    of a line without a timestamp is unknown if another rank of the same source printed steps after the last
    timestamp of the line's rank. The result does not depend on the order in which ranks wrote to the
    source.
    """
    shared: dict[str, list[StreamReading]] = {}
    for (source, _), stream in streams.items():
        if stream.timelines.advances >= AGED_STEPS:
            shared.setdefault(source, []).append(stream)
    leaders = {source: nsmallest(2, stepping, _most_steps) for source, stepping in shared.items()}
    return {key: _without_outdated(stream, leaders.get(key[0], [])) for key, stream in streams.items()}


def _most_steps(stream: StreamReading) -> tuple[int, bool, int]:
    return -stream.timelines.advances, stream.rank is None, stream.rank or 0


def _without_outdated(stream: StreamReading, leaders: Sequence[StreamReading]) -> StreamReading:
    """Return a stream without outdated times.

    `leaders` are the two streams of the same source that have the most steps.
    """
    most = next((leader for leader in leaders if leader is not stream), None)
    if stream.timed or most is None:
        return stream

    @cache
    def is_outdated(time: float) -> bool:
        return _steps_after(most.timelines.main, time) >= AGED_STEPS

    def dated(line: Line) -> Line:
        if line.time is None or not is_outdated(line.time) or stream.when(line) is not None:
            return line
        return replace(line, time=None)

    stream = copy.copy(stream)
    for name in _FAILURES:
        setattr(stream, name, _with_lines(getattr(stream, name), dated))
    return stream


def _steps_after(timeline: Timeline | None, time: float) -> int:
    """Return the number of steps that might have been completed after a time.

    A step that has the last known time of its stream counts as later, because this time might have been
    carried over.
    """
    if timeline is None:
        return 0
    return sum(
        interval.span
        for interval in timeline.intervals
        if interval.time is None or interval.time > time or interval.time == timeline.last_time
    )


def _corrected(stream: StreamReading, by: float) -> StreamReading:
    def earlier(line: Line) -> Line:
        return line if line.time is None else replace(line, time=line.time - by)

    stream = copy.copy(stream)
    for name in (*_FAILURES, "templates", "summary", "last_advance", "activity_now"):
        setattr(stream, name, _with_lines(getattr(stream, name), earlier))
    stream.timelines = _timelines_earlier(stream.timelines, by)
    for name in ("first_time", "last_time", "after_time"):
        time = getattr(stream, name)
        setattr(stream, name, None if time is None else time - by)
    signs = round(by / ACTIVITY_SECONDS)
    stream.activity = {sign - signs: lines for sign, lines in stream.activity.items()}
    return stream


def _with_lines(value: Any, change: Callable[[Line], Line]) -> Any:
    """Return a copy of an object with all its lines changed, or the object itself if no line changes."""
    if isinstance(value, Line):
        return change(value)
    if isinstance(value, msgspec.Struct):
        old = {name: getattr(value, name) for name in value.__struct_fields__}
        new = {
            name: changed for name, item in old.items() if (changed := _with_lines(item, change)) is not item
        }
        return replace(value, **new) if new else value
    if isinstance(value, (dict, list, tuple)) and not hasattr(value, "_fields"):
        old_items = list(value.values()) if isinstance(value, dict) else value
        items = [_with_lines(item, change) for item in old_items]
        if all(map(operator.is_, items, old_items)):
            return value
        return dict(zip(value, items, strict=True)) if isinstance(value, dict) else type(value)(items)
    if isinstance(value, (TracebackReader, CrashReader)):
        reader = copy.copy(value)
        for name, field in vars(value).items():
            if isinstance(field, msgspec.Struct):
                setattr(reader, name, _with_lines(field, change))
        return reader
    return value


def _timelines_earlier(timelines: StreamTimelines, by: float) -> StreamTimelines:
    timelines = copy.copy(timelines)
    timelines.by_series = {
        name: _timeline_earlier(timeline, by) for name, timeline in timelines.by_series.items()
    }
    timelines.hit_times = {rule: [time - by for time in times] for rule, times in timelines.hit_times.items()}
    return timelines


def _timeline_earlier(timeline: Timeline, by: float) -> Timeline:
    timeline = copy.copy(timeline)
    timeline.intervals = [
        interval if interval.time is None else replace(interval, time=interval.time - by)
        for interval in timeline.intervals
    ]
    timeline.last_time = None if timeline.last_time is None else timeline.last_time - by
    return timeline
