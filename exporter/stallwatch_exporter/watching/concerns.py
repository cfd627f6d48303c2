"""From what a probe tells to matches of rules: its warnings, and trace-cache invalidations that it counts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from stallwatch_exporter.rings.reader import Record
from stallwatch_rules.diagnosis.findings import TRACE_CACHE
from stallwatch_rules.judgements.concerns import SEEN, evidence_of
from stallwatch_rules.records import Line, Match
from stallwatch_rules.selftold import SOURCE

_ABOUT_THE_EVENT = ("time", "kind", "count", "rank", "rule", "step")
# Not those from outside of the forward pass: a trainer that generates throws the trace away by design.
_COUNTED = ("invalidations_mismatch", "invalidations_short")


def concern_match(event: Mapping[str, Any], number: int) -> Match | None:
    """What a ``concern`` event says, as line `number` of the events; ``None`` for one of another version."""
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
    """The event as a line of its rank."""
    rank, time = event.get("rank"), event.get("time")
    return Line(
        text,
        SOURCE,
        number,
        rank if isinstance(rank, int) else None,
        float(time) if isinstance(time, (int, float)) else None,
    )


class Told(NamedTuple):
    """A match, and how many more like it there were."""

    match: Match
    more: int


class Invalidations:
    """Counts what each rank's records say of them, with the modules that its events named last."""

    def __init__(self) -> None:
        self._totals: dict[int, float] = {}
        self._named: dict[int, Match] = {}

    def named(self, event: Mapping[str, Any], number: int) -> None:
        """A ``trace-cache`` event: which modules it was about."""
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

    def counted(self, record: Record) -> Told | None:
        """What is new in a record; ``None`` where nothing is."""
        if not any(name in record.values for name in _COUNTED):
            return None
        total = sum(record.values.get(name, 0.0) for name in _COUNTED)
        before, self._totals[record.rank] = self._totals.get(record.rank, 0.0), total
        new = int(total - before if total >= before else total)  # a rank that was started anew
        if new <= 0:
            return None
        named = self._named.get(record.rank)
        text = named.line.text if named is not None else "trace cache invalidated"
        number = named.line.number if named is not None else 0
        line = Line(text, SOURCE, number, record.rank, record.time)
        return Told(Match(TRACE_CACHE, line, named.captures if named is not None else {}), new - 1)


def _module(captures: Mapping[str, str], role: str) -> str:
    """A module's path, or where it is not known its number."""
    return captures.get(f"{role}_name") or f"module {captures.get(role, '?')}"
