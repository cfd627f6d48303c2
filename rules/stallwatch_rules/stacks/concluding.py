"""Add the evidence from the stacks to a diagnosis: the rank to inspect, and the activity of this rank."""

from __future__ import annotations

from msgspec.structs import replace

from stallwatch_rules.diagnosis.awaited import is_only_waiting
from stallwatch_rules.diagnosis.confidence import SEEN
from stallwatch_rules.diagnosis.findings import TRACE_CACHE
from stallwatch_rules.judgements.conclusions import SILENT_HANG, STANDSTILLS
from stallwatch_rules.messages import Message, Text, contains, has, message, without_sentence
from stallwatch_rules.pages.catalogue import Catalogue
from stallwatch_rules.pages.fixes import without_search
from stallwatch_rules.records import Diagnosis, Finding, Primary
from stallwatch_rules.stacks.records import StallStacks
from stallwatch_rules.stacks.sentences import odd_groups, sentence, with_title_prefix
from stallwatch_rules.stacks.spans import host_of

Advice = tuple[str, ...]  #: IDs of the messages that contain advice: first the reason, then the fixes

#: Advice for a run of one process whose stack is unknown. This advice does not mention other ranks.
ONE_PROCESS: Advice = ("diagnosis.single-why", "diagnosis.single-fix", "diagnosis.alone-fix")
#: Advice if the launcher has not started any rank yet.
NO_RANK: Advice = ("diagnosis.launcher-why", "diagnosis.joining-fix", "diagnosis.single-fix")
_ENDED: Advice = ("diagnosis.ended-why", "diagnosis.ended-fix")
_ALONE: Advice = ("diagnosis.alone-why", "diagnosis.alone-fix")
_JOINING: Advice = ("diagnosis.joining-why", "diagnosis.joining-fix")

TAKE_STACKS = "py-spy dump"  #: text that identifies advice to capture stacks
_TOGETHER = ("collective", "joining")  # kinds of calls in which a rank waits for other ranks


def with_stacks(diagnosis: Diagnosis, stacks: StallStacks, catalogue: Catalogue) -> Diagnosis:
    """Return the diagnosis with a sentence about the stacks and with the odd rank as the rank to inspect.

    If the run stalls for an unknown reason, the diagnosis gets the odd rank and advice that fits the stacks.
    If a log shows the cause, the rank of the cause remains, because the odd rank might stall as a
    consequence of this cause.
    """
    summary = sentence(stacks)
    if isinstance(summary, str):
        return diagnosis
    digest = [summary, *(line for line in diagnosis.digest if line != summary)]
    primary, findings = diagnosis.primary, diagnosis.findings
    if primary is None:
        return replace(diagnosis, digest=digest)
    alone = _is_alone(stacks)
    if primary.rule in STANDSTILLS and (stacks.odd or (alone and _all_known(stacks))):
        rank = stacks.odd[0] if stacks.odd else stacks.groups[0].ranks[0]
        host = host_of(rank, stacks.hosts) or primary.host
        if host != primary.host:  # the file and line of the primary cause are on a different host
            primary = replace(primary, host=host, file="", line=0)
        evidence = [summary, *(line for line in primary.evidence if line != summary)]
        primary = replace(primary, rank=rank, evidence=evidence)
    elif is_only_waiting(primary, catalogue) and len(stacks.odd) == 1:
        primary = _with_missing_rank(primary, stacks.odd[0], summary)
    waits = primary.rule in STANDSTILLS or is_only_waiting(primary, catalogue)
    if waits:
        odd = odd_groups(stacks)
        primary = replace(
            primary,
            title=with_title_prefix(primary.title, stacks),
            apart=[replace(group, frames=[]) for group in odd],
            fixes=without_search(primary.fixes) if odd and _all_known(stacks) else primary.fixes,
        )
    if _all_known(stacks):
        look = message("diagnosis.look-there", told=summary) if stacks.odd or alone else summary
        if stacks.file:
            look = look + message("diagnosis.all-stacks", file=stacks.file)
        if primary.rule == SILENT_HANG:
            primary = replace(primary, confidence=max(primary.confidence, SEEN))
            if stacks.why == "ended":
                primary = _with_advice(primary, _ENDED, look)
            elif all(group.kind == "joining" and group.condition == "alive" for group in stacks.groups):
                primary = _with_advice(primary, _JOINING, look)
            else:
                primary = _with_advice(primary, _ALONE, look) if alone else _with_message(primary, look)
            findings = [_without_guesses(finding, stacks) for finding in findings]
        elif waits or any(map(advises_stacks, primary.fixes)):
            primary = _with_message(primary, look)
    return replace(diagnosis, primary=primary, findings=findings, digest=digest)


def advises_stacks(fix: Text) -> bool:
    """Return whether a fix advises the user to capture stacks."""
    return contains(fix, TAKE_STACKS) or has(fix, "diagnosis.single-fix", "diagnosis.held-up")


def is_about_stacks(fix: Text) -> bool:
    """Return whether `with_stacks` added the fix, which describes the ranks of one host."""
    return isinstance(fix, Message) and fix.id in ("diagnosis.look-there", "stacks.sentence")


def _with_missing_rank(primary: Primary, rank: int, reason: Message) -> Primary:
    """Return the primary cause (a timeout of waiting ranks) with the rank that holds up the run."""
    evidence = [reason, *(line for line in primary.evidence if line != reason)]
    if primary.rank == rank:
        return replace(primary, evidence=evidence)
    fixes: list[Text] = [message("diagnosis.look-there", told=reason), *primary.fixes]
    return replace(primary, rank=rank, file="", line=0, step=None, evidence=evidence, fixes=fixes)


def with_advice(diagnosis: Diagnosis, advice: Advice) -> Diagnosis:
    """If the run stalls without a message, return the diagnosis with `advice` instead of its own advice."""
    primary = diagnosis.primary
    if primary is None or primary.rule != SILENT_HANG:
        return diagnosis
    return replace(diagnosis, primary=_with_advice(primary, advice))


def _with_advice(primary: Primary, advice: Advice, look: Message | None = None) -> Primary:
    """Return the primary cause with this advice. If there is a message about the stacks, it comes first."""
    why, *fixes = map(message, advice)
    return replace(primary, why=why, fixes=[look, *fixes] if look is not None else fixes)


def _is_alone(stacks: StallStacks) -> bool:
    """Return whether the run has a single rank, which is on this host and does not wait for another rank."""
    first = stacks.groups[0]
    single = not stacks.elsewhere and [group.ranks for group in stacks.groups] == [[0]]
    return single and first.condition == "alive" and first.kind not in _TOGETHER


def background_rules(rule: str, diagnosis: Diagnosis) -> list[str]:
    """Return the rules that match together with a stall of `rule` but do not explain why a rank stalls."""
    beside = any(finding.rule == TRACE_CACHE for finding in diagnosis.findings)
    return [TRACE_CACHE] if beside and rule == SILENT_HANG else []


def ranks_elsewhere(stacks: StallStacks | None) -> list[int]:
    """If all ranks for which other ranks wait are certainly outside collectives, return these ranks."""
    odd = odd_groups(stacks) if stacks is not None else []
    if stacks is None or any(group.kind in (*_TOGETHER, "unknown") for group in odd):
        return []
    return stacks.odd if odd else []


def _all_known(stacks: StallStacks) -> bool:
    """Return whether the activity of each running rank on this host is known."""
    return all(group.kind != "unknown" or group.condition != "alive" for group in stacks.groups)


def _with_message(primary: Primary, look: Message) -> Primary:
    """Return the primary cause with the message about the stacks, instead of the advice to capture stacks."""
    first = replace(look, then=())  # the same message, without the name of the file that contains the stacks
    others = [fix for fix in primary.fixes if not advises_stacks(fix) and fix not in (look, first)]
    return replace(primary, fixes=[look, *others])


def _without_guesses(finding: Finding, stacks: StallStacks) -> Finding:
    """Remove the sentences about the cause that are based on the log, because the stacks show the cause."""
    if finding.rule != SILENT_HANG:
        return finding
    note = without_sentence(finding.note, "diagnosis.nothing-says-why")
    return replace(finding, note=without_sentence(note, "diagnosis.stopped-behind") if stacks.odd else note)
