"""Detect runs that were ended from outside after they had stalled without an error message.

The cause of such a run's end is the stall, not the signal or scheduler that ended the run. This module uses
only the log. It compares the pace of the run with the time between the last step and the moment when a
scheduler, a SIGTERM, or a time limit ended the run.
"""

from __future__ import annotations

from collections import Counter

from msgspec.structs import replace

from stallwatch_rules.diagnosis.exceptions import SURVIVED
from stallwatch_rules.diagnosis.exits import SIGKILL, SIGTERM, lines_about_memory
from stallwatch_rules.diagnosis.findings import RuleFinding, Streams
from stallwatch_rules.lines.stamps import CANCELLED
from stallwatch_rules.progress.rhythm import ExternalEnd
from stallwatch_rules.records import Line
from stallwatch_rules.stream import StreamReading
from stallwatch_rules.text.display import earliest, latest
from stallwatch_rules.text.masking import masked

FEW = 0.25  #: maximum share of the ranks that counts as few; a single rank always counts as few


def end_from_outside(found: list[RuleFinding], streams: Streams) -> ExternalEnd | None:
    """Return the time at which something outside the run ended the run, according to the log.

    Return `None` if the log shows no such end, if the run continued after the end, or if the time is unknown.
    Some lines about an end, such as the first lines from srun, have no timestamp, but the neighboring lines
    from slurmstepd have one.
    """
    ends = [finding for finding in found if _ended_from_outside(finding) and finding.followed < SURVIVED]
    times = [
        (time, line.text)
        for finding in ends
        for key, hits in finding.hits.items()
        for line in (hits.first.line, hits.last.line)
        if (time := streams[key].when(line)) is not None
    ]
    if not times:
        return None
    time, text = min(times)
    return ExternalEnd(time, CANCELLED in text)


def _ended_from_outside(finding: RuleFinding) -> bool:
    # A failed node does not count, because the other ranks waited for it.
    from_outside = finding.tagged("ends-from-outside") and not finding.tagged("node-failed")
    return finding.tagged(SIGTERM) or from_outside


def is_end(finding: RuleFinding) -> bool:
    """Return whether a finding shows only how a stalled run was ended, such as an unexplained SIGKILL."""
    return _ended_from_outside(finding) or (finding.tagged(SIGKILL) and not lines_about_memory(finding))


def with_differing_line(finding: RuleFinding, streams: Streams) -> RuleFinding:
    """Point a stall's finding to the last line of the few ranks whose last line differs."""
    words = differing_last_line(streams)
    if words is None:
        return finding
    proof = (finding.where.text,) if finding.where is not None and finding.where is not words else ()
    return replace(finding, where=words, proof=proof)


def last_unknown_line(stream: StreamReading) -> Line | None:
    """Return the last line that matches no rule, among the lines after the last step of a stream."""
    entries = [
        entry
        for entry in stream.templates.entries.values()
        if entry.advances >= stream.timelines.advances
        and (stream.last_advance is None or entry.last.number > stream.last_advance.number)
    ]
    return max(entries, key=lambda entry: entry.last_index).last if entries else None


def differing_last_line(streams: Streams) -> Line | None:
    """Return the last line of the few ranks whose last line differs from the last line of all other ranks.

    For a single rank, return its last line.
    """
    last = {
        key: last_unknown_line(stream) for key, stream in streams.items() if stream.last_advance is not None
    }
    if len({rank for _, rank in last}) < 2:
        known = [line for line in last.values() if line is not None]
        return latest(known) if known else None
    templates = Counter(masked(line.text) if line is not None else "" for line in last.values())
    usual, count = templates.most_common(1)[0]
    others = [line for line in last.values() if line is not None and masked(line.text) != usual]
    few = len(last) - count == 1 < count or len(last) - count <= FEW * len(last)
    return earliest(others) if others and few else None
