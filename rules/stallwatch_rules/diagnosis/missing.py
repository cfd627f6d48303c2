"""The rank that a collective waited for in vain, where it is known who reported the timeout and who did not.

The ranks that print a timeout are those that came. What helps is the other one: its last step and words.
"""

from __future__ import annotations

import msgspec

from stallwatch_rules.diagnosis.findings import Found, Streams
from stallwatch_rules.diagnosis.stood import last_words
from stallwatch_rules.failures.flight import Flight, reporting
from stallwatch_rules.messages import Text, message
from stallwatch_rules.progress.tracker import ProgressTracker
from stallwatch_rules.records import Primary
from stallwatch_rules.text.digest import fold_ranks
from stallwatch_rules.text.reported import iso, shown


def all_flights(streams: Streams) -> dict[tuple[str, int], Flight]:
    """NCCL's counters of all streams together."""
    return {key: flight for stream in streams.values() for key, flight in stream.flight.ranks.items()}


def waited_in_vain(primary: Primary) -> bool:
    """Whether the primary is only what ranks say that waited for another."""
    return primary.role == "symptom" and primary.harm == "fatal" and "timeout" in primary.rule


def did_not_report(rule: str, found: list[Found], streams: Streams) -> list[int]:
    """The ranks that did not report what all others did, if they are few."""
    told = [one for one in found if one.rule == rule]
    reported = {rank for one in told for _, rank in one.hits if rank is not None}
    if any(one.tagged("flight-data") for one in told):
        reported |= reporting(all_flights(streams))
    known = {rank for _, rank in streams if rank is not None} | reported
    if len(reported) < 2:
        return []
    absent = set(range(max(known) + 1)) - reported
    return sorted(absent) if 0 < len(absent) <= len(reported) / 2 else []


def named(primary: Primary, ranks: list[int], advice: Text) -> Primary:
    """Return the primary with the ranks in its title, and this as its first advice."""
    title = message("diagnosis.of-ranks", title=primary.title, ranks=fold_ranks(ranks))
    return msgspec.structs.replace(primary, title=title, fixes=[advice, *primary.fixes])


def point_to_missing(
    primary: Primary, found: list[Found], streams: Streams, tracker: ProgressTracker
) -> Primary:
    """The primary, pointing to the rank that did not come, where that is known."""
    absent = did_not_report(primary.rule, found, streams) if waited_in_vain(primary) else []
    if not absent:
        return primary
    steps = tracker.steps
    others = max((step for rank, step in steps.items() if rank not in absent), default=None)
    own = min((steps[rank] for rank in absent if rank in steps), default=None)
    ranks = f"rank {fold_ranks(absent)}"
    if own is None or others is None:
        told = message("diagnosis.did-not-come", ranks=ranks)
    else:
        told = message("diagnosis.did-not-come-step", ranks=ranks, step=own, others=others)
    primary = named(primary, absent, told)
    spoke = [stream for (_, rank), stream in streams.items() if rank == absent[0] and stream.index]
    lines = [line for stream in spoke if (line := last_words(stream) or stream.last_advance) is not None]
    if len(absent) > 1 or len(lines) != 1:
        return primary
    line = lines[0]
    return msgspec.structs.replace(
        primary,
        rank=absent[0],
        file=line.source,
        line=line.number,
        time=iso(line.time, zoned=line.zoned),
        step=own,
        evidence=[shown(line.text), *primary.evidence[:3]],
    )
