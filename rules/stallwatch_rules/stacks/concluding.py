"""What the stacks add to a diagnosis: the rank to look at, and what it does."""

from __future__ import annotations

import msgspec

from stallwatch_rules.diagnosis.findings import TRACE_CACHE
from stallwatch_rules.diagnosis.particulars import named, waited_in_vain
from stallwatch_rules.judgements.conclusions import SILENT_HANG, STANDSTILLS
from stallwatch_rules.messages import Message, Text, contains, has, message, without
from stallwatch_rules.records import Diagnosis, Finding, Primary
from stallwatch_rules.stacks.records import StackGroup, StallStacks
from stallwatch_rules.stacks.words import sentence

HARDLY = 0.3  #: how sure a trace cache is the cause where the rank that is missed is in no collective
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
        primary = msgspec.structs.replace(
            primary, rank=rank, evidence=[told, *(line for line in primary.evidence if line != told)]
        )
    elif primary is not None and waited_in_vain(primary) and len(stacks.odd) == 1:
        primary = _of_missing(primary, stacks.odd[0], told)
    if primary is not None and _known(stacks):
        look = message("diagnosis.look-there", told=told) if stacks.odd or alone else told
        if stacks.file:
            look = look + message("diagnosis.all-stacks", file=stacks.file)
        if primary.rule == SILENT_HANG:
            if stacks.why == "ended":
                why, fixes = _of_ended(look)
                primary = msgspec.structs.replace(primary, why=why, fixes=fixes)
            else:
                primary = _advised(primary, look, alone=alone, joining=_all_join(stacks))
            findings = [_without_riddle(one) for one in findings]
        elif any(map(asks_for_stacks, primary.fixes)):
            primary = _advised(primary, look)
        if primary.rule == TRACE_CACHE and (apart := _elsewhere(stacks)):
            advice = message("diagnosis.stands-elsewhere")
            primary = msgspec.structs.replace(
                primary,
                fixes=[primary.fixes[0], advice, *(fix for fix in primary.fixes[1:] if fix != advice)],
                confidence=min(primary.confidence, HARDLY),
                apart=[msgspec.structs.replace(group, frames=[]) for group in apart],
            )
    digest = [told, *(line for line in diagnosis.digest if line != told)]
    return msgspec.structs.replace(diagnosis, primary=primary, findings=findings, digest=digest)


def asks_for_stacks(fix: Text) -> bool:
    """Return whether a fix sends people for stacks."""
    return contains(fix, TAKE_STACKS) or has(fix, "diagnosis.single-fix")


def _of_missing(primary: Primary, rank: int, told: Message) -> Primary:
    """What ranks say that waited in vain, pointing to the rank that the stacks showed to hold up the run."""
    evidence = [told, *(line for line in primary.evidence if line != told)]
    if primary.rank == rank:
        return msgspec.structs.replace(primary, evidence=evidence)
    primary = named(primary, [rank], message("diagnosis.look-there", told=told))
    return msgspec.structs.replace(primary, rank=rank, file="", line=0, step=None, evidence=evidence)


def of_one_process(diagnosis: Diagnosis) -> Diagnosis:
    """The diagnosis of a run that is one process: a silent hang's advice speaks of no other ranks."""
    return _with_advice(diagnosis, *_of_one())


def of_no_rank(diagnosis: Diagnosis) -> Diagnosis:
    """The diagnosis of a run whose launcher has started no rank yet: the advice is about the launcher."""
    return _with_advice(diagnosis, *_of_launcher())


def _with_advice(diagnosis: Diagnosis, why: Text, fixes: list[Text]) -> Diagnosis:
    """The diagnosis with this advice in place of the silent hang's own."""
    primary = diagnosis.primary
    if primary is None or primary.rule != SILENT_HANG:
        return diagnosis
    primary = msgspec.structs.replace(primary, why=why, fixes=fixes)
    return msgspec.structs.replace(diagnosis, primary=primary)


def _of_ended(look: Message) -> tuple[Text, list[Text]]:
    return message("diagnosis.ended-why"), [look, message("diagnosis.ended-fix")]


def _of_alone(look: Text) -> tuple[Text, list[Text]]:
    return message("diagnosis.alone-why"), [look, message("diagnosis.alone-fix")]


def _of_one() -> tuple[Text, list[Text]]:
    return message("diagnosis.single-why"), [message("diagnosis.single-fix"), message("diagnosis.alone-fix")]


def _of_launcher() -> tuple[Text, list[Text]]:
    return message("diagnosis.launcher-why"), [
        message("diagnosis.joining-fix"),
        message("diagnosis.single-fix"),
    ]


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


def _advised(primary: Primary, look: Message, *, alone: bool = False, joining: bool = False) -> Primary:
    """Nobody is sent to take the stacks that were taken, nor to other ranks where there is only one."""
    if joining or alone:
        joined = message("diagnosis.joining-why"), [look, message("diagnosis.joining-fix")]
        why, fixes = joined if joining else _of_alone(look)
        return msgspec.structs.replace(primary, why=why, fixes=fixes)
    first = msgspec.structs.replace(look, then=())  # as it was before the file with the stacks was written
    others = [fix for fix in primary.fixes if not asks_for_stacks(fix) and fix not in (look, first)]
    return msgspec.structs.replace(primary, fixes=[look, *others])


def _without_riddle(finding: Finding) -> Finding:
    """A standstill's note does not say that nothing tells why, where the stacks do."""
    if finding.rule != SILENT_HANG:
        return finding
    return msgspec.structs.replace(finding, note=without(finding.note, "diagnosis.nothing-says-why"))
