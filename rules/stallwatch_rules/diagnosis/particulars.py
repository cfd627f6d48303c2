"""What the log itself tells of a primary cause whose page can only say how to find it out."""

from __future__ import annotations

import msgspec

from stallwatch_rules.diagnosis.exceptions import Exceptions
from stallwatch_rules.diagnosis.findings import Found, Streams
from stallwatch_rules.diagnosis.missing import all_flights, named, waited_in_vain
from stallwatch_rules.diagnosis.raisedat import with_calls
from stallwatch_rules.diagnosis.signals import SIGTERM, told_from_outside
from stallwatch_rules.failures.flight import apart
from stallwatch_rules.failures.raised import Frame
from stallwatch_rules.messages import Text, contains, message
from stallwatch_rules.records import Primary
from stallwatch_rules.text.lazy import lazy
from stallwatch_rules.text.reported import shown

_HANGUP = lazy(r"SIGHUP|sig(?:nal|val) ?: ?1\b")
FAULTHANDLER = "-X faulthandler"


def with_particulars(
    primary: Primary, found: list[Found], exceptions: Exceptions, streams: Streams
) -> Primary:
    """The primary with what its log tells of ranks, limits, senders and frames."""
    one = next((one for one in found if one.rule == primary.rule), None)
    if one is None:
        return primary
    primary = with_calls(primary, one, streams)
    if one.tagged("flight-data") and waited_in_vain(primary):
        return _odd_ranks(primary, streams)
    if one.tagged("evicted") and any(contains(line, "OOMKill") for line in primary.evidence):
        return _over_its_limit(primary, one, streams)
    if primary.rule == SIGTERM and not exceptions.unknown:
        return _from_outside(primary, one, found)
    if one.tagged("sigsegv"):
        return _at_its_frame(primary, streams)
    return primary


def _odd_ranks(primary: Primary, streams: Streams) -> Primary:
    """The ranks that waited in another collective than most."""
    odd = apart(all_flights(streams))
    if odd is None:
        return primary
    told = message("diagnosis.flight-apart", own=odd.own(), others=odd.others())
    primary = named(primary, odd.ranks, told)
    lines = sorted(
        (hits.first.line.rank, hits.first.line.source, hits.first.line.number, hits.first.line.text)
        for (_, rank), stream in streams.items()
        if rank in odd.ranks and (hits := stream.hits.get(primary.rule)) and hits.first.line.rank is not None
    )
    if not lines:
        return msgspec.structs.replace(primary, rank=odd.ranks[0])
    rank, source, number, text = lines[0]
    evidence = list(dict.fromkeys([shown(text), *primary.evidence]))[:4]
    return msgspec.structs.replace(primary, rank=rank, file=source, line=number, evidence=evidence)


def _over_its_limit(primary: Primary, one: Found, streams: Streams) -> Primary:
    """A container that the kernel ended for its memory, with the limit that `kubectl describe` tells."""
    sources = {source for source, _ in one.hits}
    limits = {
        limit: line.text
        for (source, _), stream in streams.items()
        if source in sources
        for limit, line in stream.summary.limits.items()
    }
    told = message("diagnosis.oom-killed-first")
    if len(limits) != 1:  # of several, nobody knows which was this one's
        return msgspec.structs.replace(
            primary, title=message("diagnosis.oom-killed"), fixes=[told, *primary.fixes]
        )
    ((limit, text),) = limits.items()
    return msgspec.structs.replace(
        primary,
        title=message("diagnosis.oom-killed-limit", limit=limit),
        fixes=[told, *primary.fixes],
        evidence=[*primary.evidence[:3], shown(text)],
        captures={**primary.captures, "limit": limit},
    )


def _from_outside(primary: Primary, one: Found, found: list[Found]) -> Primary:
    """A SIGTERM that the launcher itself got, where nothing failed before it."""
    failed = [
        other for other in found if other is not one and other.harm == "fatal" and other.role != "wrapper"
    ]
    texts = [text for hits in one.hits.values() for text in hits.exemplars]
    if failed or not told_from_outside(one, found) or any(_HANGUP.search(text) for text in texts):
        return primary
    title, told = message("diagnosis.ended-from-outside"), message("diagnosis.ended-from-outside-ask")
    return msgspec.structs.replace(primary, title=title, fixes=[told, *primary.fixes])


def _at_its_frame(primary: Primary, streams: Streams) -> Primary:
    """Where a crash of compiled code was called from, as faulthandler shows it: innermost frame first."""
    dumps = [
        (rank is None, rank or 0, source, seen.raised)
        for (source, rank), stream in streams.items()
        for seen in stream.exceptions_now().seen.values()
        if seen.raised.native and seen.raised.frames and primary.rule in seen.raised.rules
    ]
    if not dumps:
        return primary
    *_, raised = min(dumps, key=lambda dump: dump[:3])
    frames = [frame for frame in reversed(raised.frames) if frame.line]
    own = next((frame for frame in frames if not frame.library), None)
    if not frames:
        return primary
    place = own if own is not None else frames[0]
    told = message("diagnosis.crashed-at", frame=shown(str(place)), inner=shown(str(frames[0])))
    fixes = [fix for fix in primary.fixes if not contains(fix, FAULTHANDLER)]
    return msgspec.structs.replace(
        primary, fixes=[told, *fixes], evidence=_with_frame(primary.evidence, place)
    )


def _with_frame(evidence: list[Text], place: Frame) -> list[Text]:
    return [*evidence[:1], shown(f"  {place}"), *evidence[1:3]]
