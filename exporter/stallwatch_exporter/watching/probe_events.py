"""Convert events from a probe to matches and log lines.

The events are the probe's warnings, counted trace-cache invalidations, exceptions that the log does not
show, and package versions that conflict with a feature of the run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from stallwatch_exporter.rings.reader import Record
from stallwatch_rules.diagnosis.findings import TRACE_CACHE
from stallwatch_rules.judgements.concerns import SEEN, evidence_of
from stallwatch_rules.locale import render
from stallwatch_rules.records import Line, Match
from stallwatch_rules.stream import SOURCE, Key, StreamReading

if TYPE_CHECKING:
    from stallwatch_lint.versions import VersionConflict

_ABOUT_THE_EVENT = ("time", "kind", "count", "rank", "rule", "step")
# Invalidations outside the forward pass do not count, because a trainer that generates text discards the
# trace by design.
_COUNTED = ("invalidations_mismatch", "invalidations_short")


def concern_match(event: Mapping[str, Any], number: int) -> Match | None:
    """Return the match for a ``concern`` event on line `number` of the events, or ``None`` if invalid."""
    rule = event.get("rule")
    captures = {
        name: value
        for name, value in event.items()
        if name not in _ABOUT_THE_EVENT and isinstance(value, str)
    }
    text = evidence_of(captures)
    if not isinstance(rule, str) or SEEN not in captures or not text:
        return None
    step = event.get("step")
    return Match(
        rule, line_of(event, number, text), captures, step if isinstance(step, int) and step else None
    )


def line_of(event: Mapping[str, Any], number: int, text: str) -> Line:
    """Return the event as a log line from its rank."""
    rank, time = event.get("rank"), event.get("time")
    return Line(
        text,
        SOURCE,
        number,
        rank if isinstance(rank, int) else None,
        float(time) if isinstance(time, (int, float)) else None,
    )


class Invalidations:
    """Count trace-cache invalidations in the ranks' records, and store the modules in recent events."""

    def __init__(self) -> None:
        self._totals: dict[int, float] = {}
        self._named: dict[int, Match] = {}

    def named(self, event: Mapping[str, Any], number: int) -> None:
        """Store the modules that a ``trace-cache`` event names."""
        how, rank = event.get("how"), event.get("rank")
        if how not in ("mismatch", "short") or not isinstance(rank, int):
            return
        captures = {
            name: str(value) for name, value in event.items() if name not in (*_ABOUT_THE_EVENT, "how")
        }
        got = _module(captures, "got")
        if how == "mismatch":
            text = f"trace cache invalidated: expected {_module(captures, 'expected')}, but got {got}"
        else:
            recorded = captures.get("recorded", "?")
            text = f"trace cache invalidated: {got} comes after the {recorded} modules that were recorded"
        self._named[rank] = Match(TRACE_CACHE, line_of(event, number, text), captures)

    def counted(self, record: Record) -> tuple[Match, int] | None:
        """Return a match for a record's first new invalidation, and the number of further invalidations."""
        if not any(name in record.values for name in _COUNTED):
            return None
        total = sum(record.values.get(name, 0.0) for name in _COUNTED)
        before, self._totals[record.rank] = self._totals.get(record.rank, 0.0), total
        new = int(total - before if total >= before else total)  # the total is 0 after a restart
        if new <= 0:
            return None
        unnamed = Match(TRACE_CACHE, Line("trace cache invalidated", SOURCE, 0), {})
        named = self._named.get(record.rank, unnamed)
        line = Line(named.line.text, SOURCE, named.line.number, record.rank, record.time)
        return Match(TRACE_CACHE, line, named.captures), new - 1


def _module(captures: Mapping[str, str], role: str) -> str:
    """Return the path of a module in its model, or its number if the path is unknown."""
    return captures.get(f"{role}_name") or f"module {captures.get(role, '?')}"


WAIT_SECONDS = 5.0
_MOST_WAITING = 1000
_COMPARED = 200  # number of characters of a message that are compared

Event = Mapping[str, Any]


class ProbeExceptions:
    """Collect the exceptions that a probe reported, until it is known whether the log shows them."""

    def __init__(self) -> None:
        self._waiting: list[tuple[float, int, Event]] = []

    def take(self, event: Event, number: int, now: float) -> None:
        """Add an ``exception`` event, which is line `number` of the events and was read at `now`."""
        if len(self._waiting) < _MOST_WAITING:
            self._waiting.append((now, number, event))

    def unlogged_lines(
        self, streams: Mapping[Key, StreamReading], now: float, *, everything: bool = False
    ) -> list[Line]:
        """Return the tracebacks of the due exceptions that the log does not show.

        If `everything` is true, all exceptions are due.
        """
        due = [waiting for waiting in self._waiting if everything or now - waiting[0] >= WAIT_SECONDS]
        if not due:
            return []
        self._waiting = [waiting for waiting in self._waiting if waiting not in due]
        known = set(_logged(streams))
        return [
            line for _, number, event in due if _key(event) not in known for line in _lines(event, number)
        ]


def _logged(streams: Mapping[Key, StreamReading]) -> Iterable[tuple[str, str]]:
    for (source, _), stream in streams.items():
        if source != SOURCE:
            for seen in stream.exceptions_now().seen.values():
                yield _short(seen.raised.exception), _compared(seen.raised.message)


def _key(event: Event) -> tuple[str, str]:
    return _short(str(event.get("exception", ""))), _compared(str(event.get("message", "")))


def _short(name: str) -> str:
    return name.rpartition(".")[2]


def _compared(message: str) -> str:
    """Return the start of a message's first line, which both the log and the event contain."""
    return message.partition("\n")[0].strip()[:_COMPARED]


def _lines(event: Event, number: int) -> list[Line]:
    """Return the lines that Python prints for the exception in an event."""
    text = ["Traceback (most recent call last):"]
    frames = event.get("frames")
    for frame in frames if isinstance(frames, list) else []:
        place, _, name = str(frame).rpartition(" ")
        path, _, line = place.rpartition(":")
        text.append(f'  File "{path}", line {line}, in {name}')
    name = str(event.get("exception", "")).removeprefix("builtins.")
    message = str(event.get("message", "")).splitlines()
    text.append(f"{name}: {message[0]}" if message else name)
    return [line_of(event, number, each) for each in [*text, *message[1:]]]


_NO_SYNC = "deepspeed-no-sync-incompatible"  #: rule that applies only if gradients are accumulated


def versions_in(event: Event) -> dict[str, str]:
    """Return the packages and versions in a ``versions`` event, by canonical package name."""
    found = {name: value for name, value in event.items() if isinstance(value, str)}
    return {name.replace("_", "-"): found[name] for name in found if name not in _ABOUT_THE_EVENT}


def before_it_fails(versions: Mapping[str, str], event: Event, number: int) -> Iterator[Match]:
    """Return matches for failures that result from these versions and the features in a ``trainer`` event."""
    used, stage = event.get("classes"), event.get("stage")
    for entry in _conflicts(versions):
        if entry.severity == "advice" or entry.auto_key or not (entry.used or entry.stages):
            continue
        if entry.used and entry.used.isdisjoint(used if isinstance(used, list) else ()):
            continue
        if entry.stages and stage not in entry.stages:
            continue
        if entry.rule == _NO_SYNC and event.get("accumulation") == 1:
            continue
        yield _match(entry, versions, event, number)


def after_a_failure(versions: Mapping[str, str], event: Event, number: int) -> Iterator[Match]:
    """Return matches for failures that these versions cause in any run. Call the function after a failure."""
    for entry in _conflicts(versions):
        if entry.severity == "fails" and not (entry.used or entry.stages or entry.auto_key):
            yield _match(entry, versions, event, number)


def _conflicts(versions: Mapping[str, str]) -> Iterable[VersionConflict]:
    from stallwatch_lint.versions import conflicts_among  # imported late, because it imports packaging

    return conflicts_among(versions)


def _match(entry: VersionConflict, versions: Mapping[str, str], event: Event, number: int) -> Match:
    names = ", ".join(f"{package} {versions[package]}" for package in entry.ranges)
    captures = {SEEN: "versions", "fault": f"incompatible versions ({names}): {render(entry.what)}"}
    return Match(entry.rule, line_of(event, number, evidence_of(captures)), captures)
