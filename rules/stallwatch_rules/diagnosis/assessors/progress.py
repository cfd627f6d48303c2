"""Assess warnings from the probe, and rules whose harm depends on the steps after their matches."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from stallwatch_rules.diagnosis.findings import OVERFLOW, TRACE_CACHE, RuleFinding, Streams
from stallwatch_rules.diagnosis.snapshot import Assessment, Change, Snapshot
from stallwatch_rules.judgements.concerns import CONCERNS, SEEN, meaning_of
from stallwatch_rules.judgements.facts import Judgement, Trace, is_accompanied
from stallwatch_rules.judgements.loss_scale import ScaleFacts, judge_overflow
from stallwatch_rules.judgements.trace_cache import judge_trace_cache
from stallwatch_rules.messages import message
from stallwatch_rules.progress.timeline import counts_in_intervals, longest_timeline
from stallwatch_rules.stream import RuleHits, StreamReading
from stallwatch_rules.text.lazy import lazy
from stallwatch_rules.text.numbers import NUMBER, number

_NUMBER = lazy(NUMBER)


def concerns(run: Snapshot, now: Assessment) -> Iterator[Change]:
    """Assess warnings that only the probe reported, such as a model that trains in evaluation mode.

    Example: ``loss nan, at least 3 times in a row`` is fatal, although the run continues.
    """
    ended_well = run.context.failed is False
    for finding in now.found:
        hits = finding.hits.values()
        if not hits or not all(SEEN in h.first.captures and SEEN in h.last.captures for h in hits):
            continue
        captures = finding.first.captures if finding.first is not None else {}
        concern = CONCERNS.get(captures.get(SEEN, ""))
        if ended_well and concern is not None and not concern.lasting:
            yield finding.with_harm("harmless", message("diagnosis.ended-well"))
        else:
            fatal = concern is not None and concern.fatal
            judgement = Judgement("fatal" if fatal else "degrading", meaning_of(captures))
            yield finding.with_judgement(judgement, seen=True)


def progress(run: Snapshot, now: Assessment) -> Iterator[Change]:
    """Assess findings of rules whose harm depends on the steps around their matches.

    Example: ``Invalidate trace cache @ step 0`` is harmless if 60 steps follow.
    """
    streams, facts = run.streams, now.facts
    skipped: Trace | None = None  # overflows that show only that the loss scale was adapted
    for finding in now.found:
        if finding.page.harm != "by-progress" or finding.tagged("often-handled") or not finding.hits:
            continue
        if finding.rule == TRACE_CACHE:
            yield finding.with_judgement(judge_trace_cache(trace_of(finding, streams), facts))
        elif finding.tagged(OVERFLOW):
            trace = trace_of(finding, streams)
            judgement = judge_overflow(trace, _scale(streams, finding), facts)
            if judgement.harm == "harmless":
                skipped = trace
            yield finding.with_judgement(judgement)
        elif finding.followed >= 3 or facts.complete:
            note = message("diagnosis.advancing", steps=finding.followed)
            yield finding.with_judgement(Judgement("harmless", note))
    if skipped is None:
        return
    for finding in now.found:
        gradients = finding.tagged("nan-gradient") and finding.hits and finding.harm == "degrading"
        if gradients and is_accompanied(trace_of(finding, streams), skipped):
            note = message("diagnosis.overflow-skipped", count=finding.count)
            yield finding.with_harm("harmless", note)


def trace_of(finding: RuleFinding, streams: Streams) -> Trace:
    """Return the number of matches in each interval between steps, from the stream with the most matches.

    If that stream has no steps, use the steps of another stream. Both streams must have timestamps.
    """
    key = max(finding.hits, key=lambda k: (finding.hits[k].count, k[1] is None, -(k[1] or 0), k[0]))
    count = finding.hits[key].count
    stream = streams[key]
    timeline = stream.timelines.main
    lead = longest_timeline({other: s.timelines for other, s in streams.items()})
    times = stream.timelines.hit_times.get(finding.rule, [])
    if (timeline is None or len(timeline.intervals) < 2) and lead is not None and lead is not timeline:
        counts = counts_in_intervals(lead.intervals, times) if times and stream.timed else None
        if counts is not None:
            return Trace(list(zip(lead.intervals, counts, strict=False)), counts[-1], count)
    if timeline is None:
        return Trace([], 0 if lead is not None else count, count)
    matches = [(interval, interval.hits.get(finding.rule, 0)) for interval in timeline.intervals]
    return Trace(matches, timeline.open_hits.get(finding.rule, 0), count)


def _scale(streams: Streams, overflow: RuleFinding) -> ScaleFacts:
    lowest = [s.lowest_scale for s in streams.values() if s.lowest_scale is not None]
    # Apex, and DeepSpeed if ZeRO is off, print the scale in lines that are not read as samples.
    for hits in overflow.hits.values():
        reduced = _NUMBER.match(hits.last.captures.get("reduced", ""))
        if reduced:
            lowest.append(number(reduced[0]))
    skipped = max((s.skipped for s in streams.values() if s.skipped is not None), default=None)
    return ScaleFacts(
        min(lowest, default=None),
        skipped[0] if skipped else None,
        skipped[1] if skipped else None,
        min(
            (good for key, hits in overflow.hits.items() for good in _until_nan(streams[key], hits)),
            default=None,
        ),
    )


def _until_nan(stream: StreamReading, hits: RuleHits) -> Iterator[int]:
    """If the last loss is NaN, yield the number of steps from the last match to the first NaN loss."""
    curve = stream.curves.main
    after = [point for point in curve.points if point.mark > hits.mark] if curve is not None else []
    if not after or not after[-1].is_nan:
        return
    good = [point.mark for point in itertools.takewhile(lambda point: not point.is_nan, after)]
    yield good[-1] - hits.mark if good else 0
