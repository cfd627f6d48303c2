"""What the stacks add to a diagnosis: the rank to look at, and what it does."""

from __future__ import annotations

from msgspec.structs import replace

from stallwatch_rules.diagnosis.confidence import SEEN
from stallwatch_rules.diagnosis.findings import TRACE_CACHE
from stallwatch_rules.diagnosis.particulars import named, waited_in_vain
from stallwatch_rules.judgements.conclusions import SILENT_HANG, STANDSTILLS
from stallwatch_rules.messages import Message, Text, contains, has, message, without
from stallwatch_rules.records import Diagnosis, Finding, Primary
from stallwatch_rules.stacks.records import StackGroup, StallStacks
from stallwatch_rules.stacks.spans import host_of
from stallwatch_rules.stacks.words import sentence

HARDLY = 0.3  #: how sure a trace cache is the cause where the rank that is missed is in no collective
Advice = tuple[str, ...]  #: ids of messages: why, and the fixes
#: A run that is one process, of which no stack is known: its advice speaks of no other ranks.
ONE_PROCESS: Advice = ("diagnosis.single-why", "diagnosis.single-fix", "diagnosis.alone-fix")
#: A launcher that has started no rank yet.
NO_RANK: Advice = ("diagnosis.launcher-why", "diagnosis.joining-fix", "diagnosis.single-fix")
_ENDED: Advice = ("diagnosis.ended-why", "diagnosis.ended-fix")
_ALONE: Advice = ("diagnosis.alone-why", "diagnosis.alone-fix")
_JOINING: Advice = ("diagnosis.joining-why", "diagnosis.joining-fix")

TAKE_STACKS = "py-spy dump"  #: in the advice to find out where the ranks are
_TOGETHER = ("collective", "joining")  # kinds of calls in which a rank waits for others


def with_stacks(diagnosis: Diagnosis, stacks: StallStacks) -> Diagnosis:
    """The diagnosis with the sentence in its digest; a standstill without a cause gets the odd rank.

    What a silent hang's page advises for a run of which nothing else is known gives way to what is known.
    A cause that a log told is not moved to another rank: whoever hangs may hang because of it.
    """
    told = sentence(stacks)
    if isinstance(told, str):
        return diagnosis
    primary = diagnosis.primary
    findings = diagnosis.findings
    alone = _in_no_collective(stacks)
    if primary is not None and primary.rule in STANDSTILLS and (stacks.odd or (alone and _known(stacks))):
        rank = stacks.odd[0] if stacks.odd else stacks.groups[0].ranks[0]
        host = host_of(rank, stacks.hosts) or primary.host
        if host != primary.host:  # nor is the last line of another host's rank the place to look at
            primary = replace(primary, host=host, file="", line=0)
        primary = replace(
            primary,
            rank=rank,
            evidence=[told, *(line for line in primary.evidence if line != told)],
        )
    elif primary is not None and waited_in_vain(primary) and len(stacks.odd) == 1:
        primary = _of_missing(primary, stacks.odd[0], told)
    if primary is not None and _known(stacks):
        look = message("diagnosis.look-there", told=told) if stacks.odd or alone else told
        if stacks.file:
            look = look + message("diagnosis.all-stacks", file=stacks.file)
        if primary.rule == SILENT_HANG:
            primary = replace(primary, confidence=max(primary.confidence, SEEN))
            joining = _JOINING if _all_join(stacks) else None
            advice = _ENDED if stacks.why == "ended" else joining or (_ALONE if alone else None)
            primary = _advised(primary, advice, look) if advice else _shown(primary, look)
            findings = [_without_riddle(one) for one in findings]
        elif any(map(asks_for_stacks, primary.fixes)):
            primary = _shown(primary, look)
        if primary.rule == TRACE_CACHE and (apart := _elsewhere(stacks)):
            hint = message("diagnosis.stands-elsewhere")
            primary = replace(
                primary,
                fixes=[primary.fixes[0], hint, *(fix for fix in primary.fixes[1:] if fix != hint)],
                confidence=min(primary.confidence, HARDLY),
                apart=[replace(group, frames=[]) for group in apart],
            )
    digest = [told, *(line for line in diagnosis.digest if line != told)]
    return replace(diagnosis, primary=primary, findings=findings, digest=digest)


def asks_for_stacks(fix: Text) -> bool:
    """Return whether a fix sends people for stacks."""
    return contains(fix, TAKE_STACKS) or has(fix, "diagnosis.single-fix")


def _of_missing(primary: Primary, rank: int, told: Message) -> Primary:
    """What ranks say that waited in vain, pointing to the rank that the stacks showed to hold up the run."""
    evidence = [told, *(line for line in primary.evidence if line != told)]
    if primary.rank == rank:
        return replace(primary, evidence=evidence)
    primary = named(primary, [rank], message("diagnosis.look-there", told=told))
    return replace(primary, rank=rank, file="", line=0, step=None, evidence=evidence)


def with_advice(diagnosis: Diagnosis, advice: Advice) -> Diagnosis:
    """The diagnosis with this advice in place of the silent hang's own."""
    primary = diagnosis.primary
    if primary is None or primary.rule != SILENT_HANG:
        return diagnosis
    return replace(diagnosis, primary=_advised(primary, advice))


def _advised(primary: Primary, advice: Advice, look: Message | None = None) -> Primary:
    """The primary with this advice, behind what the stacks showed."""
    why, *fixes = map(message, advice)
    return replace(primary, why=why, fixes=[look, *fixes] if look is not None else fixes)


def _in_no_collective(stacks: StallStacks) -> bool:
    """Whether the run has a single rank here, and it waits for no other."""
    first = stacks.groups[0]
    single = not stacks.elsewhere and [group.ranks for group in stacks.groups] == [[0]]
    return single and first.condition == "alive" and first.kind not in _TOGETHER


def _all_join(stacks: StallStacks) -> bool:
    """Whether all ranks here wait for others to join the process group."""
    return all(group.kind == "joining" and group.condition == "alive" for group in stacks.groups)


def background(rule: str, diagnosis: Diagnosis) -> list[str]:
    """Rules of what a stall of this `rule` had beside it: trace-cache messages explain no rank's own hang."""
    beside = any(one.rule == TRACE_CACHE for one in diagnosis.findings)
    return [TRACE_CACHE] if beside and rule == SILENT_HANG else []


def stands_elsewhere(stacks: StallStacks | None) -> bool:
    """Whether the rank that the others wait for is known to be in no collective."""
    return stacks is not None and bool(_elsewhere(stacks))


def _elsewhere(stacks: StallStacks) -> list[StackGroup]:
    """The odd ranks, if they are known to be in no collective: what they do keeps the others waiting."""
    odd = [group for group in stacks.groups if set(group.ranks) & set(stacks.odd)]
    return odd if not any(group.kind in (*_TOGETHER, "unknown") for group in odd) else []


def _known(stacks: StallStacks) -> bool:
    """Whether it is known of every rank here where it is."""
    return all(group.kind != "unknown" or group.condition != "alive" for group in stacks.groups)


def _shown(primary: Primary, look: Message) -> Primary:
    """The primary that tells what the stacks showed: nobody is sent to take them once more."""
    first = replace(look, then=())  # as it was before the file with the stacks was written
    others = [fix for fix in primary.fixes if not asks_for_stacks(fix) and fix not in (look, first)]
    return replace(primary, fixes=[look, *others])


def _without_riddle(finding: Finding) -> Finding:
    """A standstill's note does not say that nothing tells why, where the stacks do."""
    if finding.rule != SILENT_HANG:
        return finding
    return replace(finding, note=without(finding.note, "diagnosis.nothing-says-why"))
