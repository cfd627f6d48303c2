"""What the stacks add to a diagnosis: the rank to look at, and what it does."""

from __future__ import annotations

import msgspec

from stallwatch_rules.diagnosis.findings import TRACE_CACHE
from stallwatch_rules.diagnosis.missing import named, waited_in_vain
from stallwatch_rules.judgements.conclusions import SILENT_HANG, STANDSTILLS
from stallwatch_rules.records import Diagnosis, Finding, Primary
from stallwatch_rules.stacks.records import StackGroup, StallStacks
from stallwatch_rules.stacks.words import sentence
from stallwatch_rules.text.retelling import retold
from stallwatch_rules.text.sentences import say

HARDLY = 0.3  #: how sure a trace cache is the cause where the rank that is missed is in no collective
TAKE_STACKS = "py-spy dump"  #: in the advice to find out where the ranks are
_TOGETHER = ("collective", "joining")  # kinds of calls in which a rank waits for others


def with_stacks(diagnosis: Diagnosis, stacks: StallStacks, language: str = "en") -> Diagnosis:
    """The diagnosis with the sentence in its digest; a standstill without a cause gets the odd rank.

    What a silent hang's page advises for a run of which nothing else is known gives way to what is known.
    A cause that a log told is not moved to another rank: whoever hangs may hang because of it.
    """
    told = sentence(stacks, language)
    if not told:
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
        primary = _of_missing(primary, stacks.odd[0], told, language)
    if primary is not None and _known(stacks):
        look = say("look-there", language, told=told) if stacks.odd or alone else told
        if stacks.file:
            look = f"{look} {say('all-stacks', language, file=stacks.file)}"
        if primary.rule == SILENT_HANG:
            if stacks.why == "ended":
                why, fixes = _of_ended(look, language)
                primary = msgspec.structs.replace(primary, why=why, fixes=fixes)
            else:
                primary = _advised(primary, look, language, alone=alone, joining=_all_join(stacks))
            findings = [_without_riddle(one, language) for one in findings]
        elif any(TAKE_STACKS in fix for fix in primary.fixes):
            primary = _advised(primary, look, language)
        if primary.rule == TRACE_CACHE and (apart := _elsewhere(stacks)):
            advice = say("stands-elsewhere", language)
            primary = msgspec.structs.replace(
                primary,
                fixes=[primary.fixes[0], advice, *(fix for fix in primary.fixes[1:] if fix != advice)],
                confidence=min(primary.confidence, HARDLY),
                apart=[msgspec.structs.replace(group, frames=[]) for group in apart],
            )
    digest = [told, *(line for line in diagnosis.digest if line != told)]
    return msgspec.structs.replace(diagnosis, primary=primary, findings=findings, digest=digest)


def _of_missing(primary: Primary, rank: int, told: str, language: str) -> Primary:
    """What ranks say that waited in vain, pointing to the rank that the stacks showed to hold up the run."""
    evidence = [told, *(line for line in primary.evidence if line != told)]
    if primary.rank == rank:
        return msgspec.structs.replace(primary, evidence=evidence)
    primary = named(primary, [rank], say("look-there", language, told=told), language)
    return msgspec.structs.replace(primary, rank=rank, file="", line=0, step=None, evidence=evidence)


def of_one_process(diagnosis: Diagnosis, language: str = "en") -> Diagnosis:
    """The diagnosis of a run that is one process: a silent hang's advice speaks of no other ranks."""
    return _with_advice(diagnosis, *_of_one(language))


def of_no_rank(diagnosis: Diagnosis, language: str = "en") -> Diagnosis:
    """The diagnosis of a run whose launcher has started no rank yet: the advice is about the launcher."""
    return _with_advice(diagnosis, *_of_launcher(language))


def _with_advice(diagnosis: Diagnosis, why: str, fixes: list[str]) -> Diagnosis:
    """The diagnosis with this advice in place of the silent hang's own."""
    primary = diagnosis.primary
    if primary is None or primary.rule != SILENT_HANG:
        return diagnosis
    primary = msgspec.structs.replace(primary, why=why, fixes=fixes)
    return msgspec.structs.replace(diagnosis, primary=primary)


def advice_in(
    primary: Primary | None, stacks: StallStacks | None, language: str
) -> tuple[str, list[str]] | None:
    """Why, and what to do, at the silent hang of a rank that waits for no other, in the reader's language.

    The diagnosis was made in the language of the run. ``None`` where the page's words are the ones to show.
    """
    if primary is None or primary.rule != SILENT_HANG:
        return None
    if stacks is not None and stacks.groups and stacks.why == "ended" and _known(stacks):
        return _of_ended(say("look-there", language, told=sentence(stacks, language)), language)
    if stacks is not None and stacks.groups and _in_no_collective(stacks) and _known(stacks):
        return _of_alone(say("look-there", language, told=sentence(stacks, language)), language)
    if stacks is not None and stacks.groups and _all_join(stacks):
        return say("joining-why", language), [sentence(stacks, language), say("joining-fix", language)]
    if primary.why in _either("launcher-why"):
        return _of_launcher(language)
    if primary.why in _either("alone-why"):
        return _of_alone(retold(primary.fixes[0], language), language)
    return _of_one(language) if primary.why in _either("single-why") else None


def _of_ended(look: str, language: str) -> tuple[str, list[str]]:
    return say("ended-why", language), [look, say("ended-fix", language)]


def _of_alone(look: str, language: str) -> tuple[str, list[str]]:
    return say("alone-why", language), [look, say("alone-fix", language)]


def _of_one(language: str) -> tuple[str, list[str]]:
    return say("single-why", language), [say("single-fix", language), say("alone-fix", language)]


def _of_launcher(language: str) -> tuple[str, list[str]]:
    return say("launcher-why", language), [say("joining-fix", language), say("single-fix", language)]


def _either(name: str) -> tuple[str, str]:
    return say(name, "en"), say(name, "zh")


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


def _advised(
    primary: Primary, look: str, language: str, *, alone: bool = False, joining: bool = False
) -> Primary:
    """Nobody is sent to take the stacks that were taken, nor to other ranks where there is only one."""
    if joining:
        why, fixes = say("joining-why", language), [look, say("joining-fix", language)]
        return msgspec.structs.replace(primary, why=why, fixes=fixes)
    if alone:
        why, fixes = _of_alone(look, language)
        return msgspec.structs.replace(primary, why=why, fixes=fixes)
    fixes = [fix for fix in primary.fixes if TAKE_STACKS not in fix and not look.startswith(fix)]
    return msgspec.structs.replace(primary, fixes=[look, *fixes])


def _without_riddle(finding: Finding, language: str) -> Finding:
    """A standstill's note does not say that nothing tells why, where the stacks do."""
    if finding.rule != SILENT_HANG:
        return finding
    note = finding.note.removesuffix(say("nothing-says-why", language))
    return msgspec.structs.replace(finding, note=note)
