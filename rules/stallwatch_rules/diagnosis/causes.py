"""Select the primary cause from several findings according to their roles.

Causes take precedence over symptoms, symptoms over wrappers, and wrappers over notices. The selection does
not depend on the order in which ranks were read, so a different interleaving of the same logs produces the
same result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from stallwatch_rules.diagnosis.confidence import Rivals, confidence
from stallwatch_rules.diagnosis.findings import Occurrence, RuleFinding
from stallwatch_rules.records import Harm, PassedOver, PassedReason, Role

_ROLES: tuple[Role, ...] = ("cause", "symptom", "wrapper", "notice")
_HARMS: tuple[Harm, ...] = ("fatal", "degrading", "by-progress", "harmless")


def causal_order(findings: Sequence[RuleFinding]) -> list[RuleFinding]:
    """Sort findings from most to least harmful. Each finding is followed by the findings that it explains."""
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
    """Sort findings by harm (worst first), then by role (causes first), then by time (earliest first)."""
    return [
        finding
        for harm in _HARMS
        for role in _ROLES
        for finding in _sorted([c for c in findings if c.harm == harm and c.role == role])
    ]


def explained(findings: Sequence[RuleFinding]) -> Mapping[str, set[str]]:
    """Map each rule that other rules explain to the rules that explain it, directly or indirectly.

    Only harmful rules explain other rules. If two rules explain each other, neither of them counts as
    explained by the other.
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
    """Return the primary cause and its confidence, or ``None`` if no finding is harmful."""
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
    """Return the harmful findings that are not the root cause, each with the reason for its exclusion.

    `chosen` is the primary cause. It is ``None`` if the cause is an unknown exception. In this case, no
    finding has the role of a cause, and no symptom came before the exception.
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
    """Return the confidence that `first` is the cause, given the other findings that could be the cause."""
    facts = set(first.facts)
    concluded = first.judged and first.harm in ("fatal", "degrading")
    if concluded and not any(fact.startswith("ending-") for fact in facts):
        facts.add("judged")
    if unknown_beside:
        facts.add("unknown-beside")
    return confidence(first.role, _order(first, rivals), facts)


def _order(first: RuleFinding, rivals: Sequence[RuleFinding]) -> Rivals:
    """Return whether the rivals came after `first`, as far as times, positions, or steps show their order."""
    if not rivals:
        return "none"
    group = [first, *rivals]
    if _times(group) is not None or _positions(group) is not None:
        return "later"
    return "later-step" if _steps(group) is not None else "unordered"


def _sorted(group: Sequence[RuleFinding]) -> list[RuleFinding]:
    """Sort findings by time, then by the specificity of their patterns, then by rank.

    If some of the findings have no time, sort them by their positions in a stream that contains them all. If
    there is no such stream, sort them by step.
    """
    when = _times(group) or _positions(group) or _steps(group) or {}
    return sorted(group, key=lambda c: (when.get(c.rule, 0.0), -c.specificity, _lowest_rank(c), c.rule))


def _earliest(
    group: Sequence[RuleFinding], of: Callable[[Occurrence], float | None]
) -> dict[str, float] | None:
    """Return each rule's earliest time or step, or ``None`` if any match has no known time or step."""
    lowest: dict[str, float] = {}
    for finding in group:
        known = [value for place in finding.occurrences if (value := of(place)) is not None]
        if not known or len(known) < len(finding.occurrences):
            return None
        lowest[finding.rule] = float(min(known))
    return lowest


def _times(group: Sequence[RuleFinding]) -> dict[str, float] | None:
    return _earliest(group, lambda place: place.time)


def _positions(group: Sequence[RuleFinding]) -> dict[str, float] | None:
    """Return each rule's first position in one stream, or ``None`` if no stream contains all the rules."""
    if not group:
        return None
    streams = set.intersection(*({place.stream for place in c.occurrences} for c in group))
    if not streams:
        return None
    stream = min(streams, key=lambda s: (s[1] is None, s[1] or 0, s[0]))
    return {c.rule: float(min(p.position for p in c.occurrences if p.stream == stream)) for c in group}


def _steps(group: Sequence[RuleFinding]) -> dict[str, float] | None:
    steps = _earliest(group, lambda place: place.step)
    return steps if steps is not None and len(set(steps.values())) > 1 else None


def _same_place(finding: RuleFinding, other: RuleFinding) -> bool:
    """Return whether two rules matched the same line and therefore describe the same event."""
    places = {(p.stream, p.position) for p in finding.occurrences}
    return any((p.stream, p.position) in places for p in other.occurrences)


def _lowest_rank(finding: RuleFinding) -> float:
    ranks = [place.stream[1] for place in finding.occurrences]
    return min((rank for rank in ranks if rank is not None), default=float("inf"))
