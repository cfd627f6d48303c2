"""Estimate the offsets between hosts' clocks, from events that several hosts logged at the same moment.

The ranks of a synchronous training finish a step together, and a collective times out in all ranks at once.
If a host logs these events earlier or later than the other hosts, always by the same amount, its clock is
off.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Hashable, Iterable, Iterator, Mapping
from statistics import median, median_low
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from stallwatch_rules.diagnosis.findings import Streams
from stallwatch_rules.failures.crashes import CrashReader
from stallwatch_rules.failures.tracebacks import TracebackReader
from stallwatch_rules.progress.timeline import Interval, StreamTimelines, Timeline
from stallwatch_rules.records import Line
from stallwatch_rules.stream import ACTIVITY_SECONDS, Key, StreamReading
from stallwatch_rules.text.lazy import lazy

MATTERS = 2.0  #: minimum clock error, in seconds, for which times are corrected
LEAST = 2  #: minimum number of events that a host must have in common with other hosts
STEADY = 1.0  #: maximum median deviation, in seconds, of a host's offsets for its clock to be corrected
SHARE = 0.1  #: maximum median deviation as a share of the clock error, if more than ``STEADY``
STREAMS = 4  #: maximum number of streams to read per host; all ranks of a host share one clock

_WORK = lazy(r"\bSeqNum=(\d{1,12}), ?OpType=(\w{1,40})")


class Event(NamedTuple):
    """An event that occurs on several hosts at once, as one host logged it."""

    what: Hashable
    host: str
    time: float


def clocks_ahead(events: Iterable[Event]) -> dict[str, float]:
    """Return the seconds by which each host's clock is ahead, if they are steady and enough to matter."""
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
        if abs(by) > MATTERS and median(abs(one - by) for one in apart[host]) <= max(STEADY, SHARE * abs(by))
    }


def events_of(streams: Streams, hosts: Mapping[Key, str]) -> Iterator[Event]:
    """Yield the events that can be compared between hosts: finished steps, and timeouts of collectives."""
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


def _corrected(stream: StreamReading, by: float) -> StreamReading:
    stream = copy.copy(stream)
    for name in ("timelines", "tracebacks", "crashes", "exceptions", "templates", "hits", "summary"):
        setattr(stream, name, _earlier(getattr(stream, name), by))
    stream.last_advance = _earlier(stream.last_advance, by)
    stream.activity_now = _earlier(stream.activity_now, by)
    for name in ("first_time", "last_time", "after_time"):
        time = getattr(stream, name)
        setattr(stream, name, None if time is None else time - by)
    signs = round(by / ACTIVITY_SECONDS)
    stream.activity = {sign - signs: lines for sign, lines in stream.activity.items()}
    return stream


def _earlier(value: Any, by: float) -> Any:
    """Return a copy of an object in which the times of all its lines and steps are ``by`` seconds earlier."""
    if isinstance(value, (Line, Interval)):
        return value if value.time is None else replace(value, time=value.time - by)
    if isinstance(value, msgspec.Struct):
        old = {name: getattr(value, name) for name in value.__struct_fields__}
        new = {name: moved for name, one in old.items() if (moved := _earlier(one, by)) is not one}
        return replace(value, **new) if new else value
    if isinstance(value, dict):
        return {key: _earlier(one, by) for key, one in value.items()} if value else value
    if isinstance(value, list):
        return [_earlier(one, by) for one in value] if value else value
    if isinstance(value, tuple) and not hasattr(value, "_fields"):
        items = tuple(_earlier(one, by) for one in value)
        return items if any(map(operator.is_not, items, value)) else value
    if isinstance(value, StreamTimelines):
        timelines = copy.copy(value)
        timelines.by_series = {name: _earlier(one, by) for name, one in value.by_series.items()}
        timelines.hit_times = {rule: [one - by for one in times] for rule, times in value.hit_times.items()}
        return timelines
    if isinstance(value, Timeline):
        timeline = copy.copy(value)
        timeline.intervals = _earlier(value.intervals, by)
        timeline.last_time = None if value.last_time is None else value.last_time - by
        return timeline
    if isinstance(value, (TracebackReader, CrashReader)):
        holder = copy.copy(value)
        for name, field in vars(value).items():
            if isinstance(field, msgspec.Struct):
                setattr(holder, name, _earlier(field, by))
        return holder
    return value
