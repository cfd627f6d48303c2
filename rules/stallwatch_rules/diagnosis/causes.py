"""Select the cause among several findings by role: causes, then symptoms, then wrappers, then notices.

The selection does not depend on the order in which ranks were read, so another interleaving of the same logs
gives the same result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from stallwatch_rules.diagnosis.confidence import Rivals, confidence
from stallwatch_rules.diagnosis.findings import RuleFinding
from stallwatch_rules.records import Harm, PassedOver, PassedReason, Role

_ROLES: tuple[Role, ...] = ("cause", "symptom", "wrapper", "notice")
_HARMS: tuple[Harm, ...] = ("fatal", "degrading", "by-progress", "harmless")


def causal_order(findings: Sequence[RuleFinding]) -> list[RuleFinding]:
    """Sort findings, worst first and causes before symptoms, each followed by the findings it explains."""
    by_rule = {finding.rule: finding for finding in findings}
    under = explained(findings)
    order: dict[str, RuleFinding] = {}

    def put(finding: RuleFinding) -> None:
        if finding.rule in order:
            return
        order[finding.rule] = finding
        below = [by_rule[rule] for rule, causes in under.items() if finding.rule in causes]
        for consequence in _by_weight(below):
            put(consequence)

    for finding in _by_weight([c for c in findings if c.rule not in under]):
        put(finding)
    for finding in _by_weight(findings):
        put(finding)
    return list(order.values())


def _by_weight(findings: Sequence[RuleFinding]) -> list[RuleFinding]:
    """Sort findings by harm, role, and time: the worst first, causes before symptoms, the earliest first."""
    return [
        finding
        for harm in _HARMS
        for role in _ROLES
        for finding in _sorted([c for c in findings if c.harm == harm and c.role == role])
    ]


def explained(findings: Sequence[RuleFinding]) -> Mapping[str, set[str]]:
    """Map each explained rule to the rules in this run that explain it, directly or through other rules.

    Only harmful rules explain other rules. Two rules that explain each other are not explained by each other.
    """
    present = {c.rule: c for c in findings}
    reach: dict[str, set[str]] = {}
    for finding in findings:
        if finding.harm in ("fatal", "degrading"):
            reach[finding.rule] = _reachable(finding, present)
    return {
        rule: causes
        for rule in present
        if (causes := {c for c, below in reach.items() if rule in below and c not in reach.get(rule, ())})
    }


def _reachable(start: RuleFinding, present: Mapping[str, RuleFinding]) -> set[str]:
    found: set[str] = set()
    waiting = list(start.all_explained)
    while waiting:
        rule = waiting.pop()
        if rule in present and rule not in found and rule != start.rule:
            found.add(rule)
            waiting += present[rule].all_explained
    return found


def primary(
    findings: Sequence[RuleFinding], unknown_beside: bool = False
) -> tuple[RuleFinding, float] | None:
    """Return the root-cause finding and its confidence; ``None`` if no finding is harmful."""
    under = explained(findings)
    for harm in ("fatal", "degrading"):
        harmful = [c for c in findings if c.harm == harm and c.role != "notice"]
        for role in _ROLES[:3]:
            group = _sorted([c for c in harmful if c.role == role and c.rule not in under])
            if not group:
                continue
            first, rivals = group[0], [c for c in group[1:] if not _same_place(c, group[0])]
            return first, confidence_among(first, rivals, unknown_beside)
    return None


def passed_over(findings: Sequence[RuleFinding], chosen: RuleFinding | None) -> list[PassedOver]:
    """Return the harmful findings that are not the root cause, each with the reason.

    ``chosen`` is ``None`` if the cause is an unknown exception, which requires that no cause is known and
    that no symptom came before the exception.
    """
    under = explained(findings)
    harm, role = (chosen.harm, chosen.role) if chosen is not None else ("fatal", "symptom")
    passed = []
    for finding in causal_order(findings):
        if finding is chosen or finding.harm not in ("fatal", "degrading") or finding.role == "notice":
            continue
        reason: PassedReason = "order"
        if chosen is not None and chosen.rule in under.get(finding.rule, ()):
            reason = "explained"
        elif finding.rule in under:
            reason = "explained-by-others"
        elif finding.harm != harm:
            reason = "harm"
        elif finding.role != role:
            reason = "role"
        passed.append(PassedOver(finding.rule, reason))
    return passed


def confidence_among(
    first: RuleFinding, rivals: Sequence[RuleFinding] = (), unknown_beside: bool = False
) -> float:
    """Return the confidence that a finding is the cause, given the rival findings."""
    facts = set(first.facts)
    concluded = first.judged and first.harm in ("fatal", "degrading")
    if concluded and not any(fact.startswith("ending-") for fact in facts):
        facts.add("judged")
    if unknown_beside:
        facts.add("unknown-beside")
    return confidence(first.role, _order(first, rivals), facts)


def _order(first: RuleFinding, rivals: Sequence[RuleFinding]) -> Rivals:
    """Return the order of the rivals relative to the first finding, as far as their positions show it."""
    if not rivals:
        return "none"
    group = [first, *rivals]
    if _times(group) is not None or _positions(group) is not None:
        return "later"
    return "later-step" if _steps(group) is not None else "unordered"


def _sorted(group: Sequence[RuleFinding]) -> list[RuleFinding]:
    """Sort findings: the earliest first, then the more specific, then the lowest rank.

    The order is by time if all findings have times, else by position in a stream that contains them all, else
    by step.
    """
    when = _times(group) or _positions(group) or _steps(group) or {}
    return sorted(group, key=lambda c: (when.get(c.rule, 0.0), -c.specificity, _lowest_rank(c), c.rule))


def _times(group: Sequence[RuleFinding]) -> dict[str, float] | None:
    """Return each rule's earliest time, or ``None`` if an occurrence has no time."""
    times: dict[str, float] = {}
    for finding in group:
        known = [place.time for place in finding.occurrences if place.time is not None]
        if not known or len(known) < len(finding.occurrences):
            return None
        times[finding.rule] = min(known)
    return times


def _positions(group: Sequence[RuleFinding]) -> dict[str, float] | None:
    """Return each rule's position in a stream that contains all the rules, or ``None``."""
    if not group:
        return None
    streams = set.intersection(*({place.stream for place in c.occurrences} for c in group))
    if not streams:
        return None
    stream = min(streams, key=lambda s: (s[1] is None, s[1] or 0, s[0]))
    return {c.rule: float(min(p.position for p in c.occurrences if p.stream == stream)) for c in group}


def _steps(group: Sequence[RuleFinding]) -> dict[str, float] | None:
    steps: dict[str, float] = {}
    for finding in group:
        known = [place.step for place in finding.occurrences if place.step is not None]
        if not known or len(known) < len(finding.occurrences):
            return None
        steps[finding.rule] = float(min(known))
    return steps if len(set(steps.values())) > 1 else None


def _same_place(finding: RuleFinding, other: RuleFinding) -> bool:
    """Return whether two rules matched on the same line, so that they describe one event."""
    places = {(p.stream, p.position) for p in finding.occurrences}
    return any((p.stream, p.position) in places for p in other.occurrences)


def _lowest_rank(finding: RuleFinding) -> float:
    ranks = [place.stream[1] for place in finding.occurrences]
    return min((rank for rank in ranks if rank is not None), default=float("inf"))
