"""A run that stood silently until somebody ended it: the stall is the cause, and how it was ended is not.

Only the log is asked: how long it was silent before a scheduler, a SIGTERM or a time limit ended the run, by
the run's own rhythm.
"""

from __future__ import annotations

from collections import Counter

from msgspec.structs import replace

from stallwatch_rules.diagnosis.exceptions import SURVIVED
from stallwatch_rules.diagnosis.exits import SIGKILL, SIGTERM, tells_of_memory
from stallwatch_rules.diagnosis.findings import Found, Streams
from stallwatch_rules.lines.stamps import CANCELLED
from stallwatch_rules.progress.rhythm import End
from stallwatch_rules.records import Line
from stallwatch_rules.stream import StreamReading
from stallwatch_rules.text.masking import masked
from stallwatch_rules.text.reported import earliest, latest

FEW = 0.25  #: share of the ranks that may stand apart, beside one


def told_end(found: list[Found], streams: Streams) -> End | None:
    """When the run was ended from outside, as the log tells; `None` where it went on or tells no time.

    Not every line of an end has a time: srun's first words have none, slurmstepd's next to it have.
    """
    ends = [one for one in found if _ended_from_outside(one) and one.followed < SURVIVED]
    told = [
        (time, line.text)
        for one in ends
        for key, hits in one.hits.items()
        for line in (hits.first.line, hits.last.line)
        if (time := streams[key].when(line)) is not None
    ]
    if not told:
        return None
    time, text = min(told)
    return End(time, CANCELLED in text)


def _ended_from_outside(one: Found) -> bool:
    """Whether it says that the run was ended from outside; a failed node is what the others stood for."""
    return one.tagged(SIGTERM) or (one.tagged("ends-from-outside") and not one.tagged("node-failed"))


def is_end(one: Found) -> bool:
    """Whether a finding is only how a standing run was ended: a kill without a word of memory, too."""
    return _ended_from_outside(one) or (one.tagged(SIGKILL) and not tells_of_memory(one))


def shown_apart(one: Found, streams: Streams) -> Found:
    """The standstill, pointing to the last words of the rank that stands apart, beside the last step."""
    words = apart(streams)
    if words is None:
        return one
    proof = (one.where.text,) if one.where is not None and one.where is not words else ()
    return replace(one, where=words, proof=proof)


def last_words(stream: StreamReading) -> Line | None:
    """The last line that a stream says after its last step and that no rule knows."""
    entries = [
        entry
        for entry in stream.templates.entries.values()
        if entry.advances >= stream.timelines.advances
        and (stream.last_advance is None or entry.last.number > stream.last_advance.number)
    ]
    return max(entries, key=lambda entry: entry.last_index).last if entries else None


def apart(streams: Streams) -> Line | None:
    """The last words of the one rank, or of a few, that said something else last than all others."""
    said = {key: last_words(stream) for key, stream in streams.items() if stream.last_advance is not None}
    if len({rank for _, rank in said}) < 2:
        known = [line for line in said.values() if line is not None]
        return latest(known) if known else None
    wordings = Counter(masked(line.text) if line is not None else "" for line in said.values())
    usual, count = wordings.most_common(1)[0]
    others = [line for line in said.values() if line is not None and masked(line.text) != usual]
    few = len(said) - count == 1 < count or len(said) - count <= FEW * len(said)
    return earliest(others) if others and few else None
