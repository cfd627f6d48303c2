"""Which of several findings is the cause: causes before symptoms before wrappers before notices.

Nothing in here looks at the order in which ranks were read, so that another interleaving of the same logs
cannot give another answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from stallwatch_rules.diagnosis.confidence import Known, Rivals, confidence
from stallwatch_rules.records import Harm, PassedOver, PassedReason, Role

Stream = tuple[str, int | None]  #: source and rank: lines of one stream have an order among themselves

_ROLES: tuple[Role, ...] = ("cause", "symptom", "wrapper", "notice")
_HARMS: tuple[Harm, ...] = ("fatal", "degrading", "by-progress", "harmless")


class Occurrence(msgspec.Struct, frozen=True):
    """The first time that a rule fired in one stream."""

    stream: Stream
    position: int  #: the line's index in its stream
    time: float | None = None
    step: int | None = None


class Candidate(msgspec.Struct, frozen=True):
    """A finding as far as the causal order is concerned."""

    rule: str
    role: Role
    harm: Harm
    explains: tuple[str, ...] = ()
    occurrences: tuple[Occurrence, ...] = ()  #: none for what was concluded from the run
    specificity: int = 0  #: how much literal text its pattern asks for
    incubating: bool = False
    judged: bool = False  #: its harm was concluded from the run's progress
    facts: frozenset[str] = frozenset()  #: what else makes it less sure, by the names of ``confidence``


def causal_order(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Worst and most causal first; what a finding explains stands directly under it."""
    by_rule = {candidate.rule: candidate for candidate in candidates}
    under = explained(candidates)
    order: list[Candidate] = []

    def put(candidate: Candidate) -> None:
        if candidate in order:
            return
        order.append(candidate)
        below = [by_rule[rule] for rule, causes in under.items() if candidate.rule in causes]
        for consequence in _by_weight(below):
            put(consequence)

    for candidate in _by_weight([c for c in candidates if c.rule not in under]):
        put(candidate)
    for candidate in _by_weight(candidates):
        put(candidate)
    return order


def _by_weight(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Worst first, causes before symptoms before wrappers before notices, then the earliest."""
    return [
        candidate
        for harm in _HARMS
        for role in _ROLES
        for candidate in _sorted([c for c in candidates if c.harm == harm and c.role == role])
    ]


def explained(candidates: Sequence[Candidate]) -> Mapping[str, set[str]]:
    """Rule → the present rules that explain it, directly or through others.

    Only what did harm explains anything, and two rules that explain each other explain nothing.
    """
    present = {c.rule: c for c in candidates}
    reach: dict[str, set[str]] = {}
    for candidate in candidates:
        if candidate.harm in ("fatal", "degrading"):
            reach[candidate.rule] = _reachable(candidate, present)
    return {
        rule: causes
        for rule in present
        if (causes := {c for c, below in reach.items() if rule in below and c not in reach.get(rule, ())})
    }


def _reachable(start: Candidate, present: Mapping[str, Candidate]) -> set[str]:
    found: set[str] = set()
    waiting = list(start.explains)
    while waiting:
        rule = waiting.pop()
        if rule in present and rule not in found and rule != start.rule:
            found.add(rule)
            waiting += present[rule].explains
    return found


def primary(candidates: Sequence[Candidate], unknown_beside: bool = False) -> tuple[Candidate, float] | None:
    """The one finding to act on first, and how sure that is; ``None`` where nothing did harm."""
    under = explained(candidates)
    for harm in ("fatal", "degrading"):
        harmful = [c for c in candidates if c.harm == harm and c.role != "notice"]
        for role in _ROLES[:3]:
            group = _sorted([c for c in harmful if c.role == role and c.rule not in under])
            if not group:
                continue
            first, rivals = group[0], [c for c in group[1:] if not _same_place(c, group[0])]
            return first, confidence(known(first, rivals, unknown_beside))
    return None


def passed_over(candidates: Sequence[Candidate], chosen: Candidate | None) -> list[PassedOver]:
    """The harmful findings that are not the root cause, and why; ``None`` stands for an unknown exception.

    An exception is the cause only where no cause is known, and no symptom came before it.
    """
    under = explained(candidates)
    harm, role = (chosen.harm, chosen.role) if chosen is not None else ("fatal", "symptom")
    passed = []
    for one in causal_order(candidates):
        if one == chosen or one.harm not in ("fatal", "degrading") or one.role == "notice":
            continue
        reason: PassedReason = "order"
        if chosen is not None and chosen.rule in under.get(one.rule, ()):
            reason = "explained"
        elif one.rule in under:
            reason = "explained-by-others"
        elif one.harm != harm:
            reason = "harm"
        elif one.role != role:
            reason = "role"
        passed.append(PassedOver(one.rule, reason))
    return passed


def alone(candidate: Candidate) -> tuple[Candidate, float]:
    """A candidate as the primary, whatever else there is, and how sure that is."""
    return candidate, confidence(known(candidate, []))


def known(first: Candidate, rivals: Sequence[Candidate], unknown_beside: bool = False) -> Known:
    """What the confidence in a candidate is made of."""
    facts = set(first.facts)
    if first.judged and not any(fact.startswith("ending-") for fact in facts):
        facts.add("judged")
    if first.incubating:
        facts.add("incubating")
    if unknown_beside:
        facts.add("unknown-beside")
    return Known(first.role, _order(first, rivals), frozenset(facts))


def _order(first: Candidate, rivals: Sequence[Candidate]) -> Rivals:
    """What the rivals' places tell."""
    if not rivals:
        return "none"
    group = [first, *rivals]
    if _times(group) is not None or _positions(group) is not None:
        return "later"
    return "later-step" if _steps(group) is not None else "unordered"


def _sorted(group: Sequence[Candidate]) -> list[Candidate]:
    """Earliest first: by time where all know it, else by their order in a stream that has them all, else by
    step; then the more specific, then the lowest rank."""
    when = _times(group) or _positions(group) or _steps(group) or {}
    return sorted(group, key=lambda c: (when.get(c.rule, 0.0), -c.specificity, _lowest_rank(c), c.rule))


def _times(group: Sequence[Candidate]) -> dict[str, float] | None:
    """Each rule's earliest time, if every place of every rule knows its time."""
    times: dict[str, float] = {}
    for candidate in group:
        known = [place.time for place in candidate.occurrences if place.time is not None]
        if not known or len(known) < len(candidate.occurrences):
            return None
        times[candidate.rule] = min(known)
    return times


def _positions(group: Sequence[Candidate]) -> dict[str, float] | None:
    """Each rule's position in a stream that has them all."""
    if not group:
        return None
    streams = set.intersection(*({place.stream for place in c.occurrences} for c in group))
    if not streams:
        return None
    stream = min(streams, key=lambda s: (s[1] is None, s[1] or 0, s[0]))
    return {c.rule: float(min(p.position for p in c.occurrences if p.stream == stream)) for c in group}


def _steps(group: Sequence[Candidate]) -> dict[str, float] | None:
    steps: dict[str, float] = {}
    for candidate in group:
        known = [place.step for place in candidate.occurrences if place.step is not None]
        if not known or len(known) < len(candidate.occurrences):
            return None
        steps[candidate.rule] = float(min(known))
    return steps if len(set(steps.values())) > 1 else None


def _same_place(one: Candidate, other: Candidate) -> bool:
    """Whether two rules fired on the same line: then they name one event, not two."""
    places = {(p.stream, p.position) for p in one.occurrences}
    return any((p.stream, p.position) in places for p in other.occurrences)


def _lowest_rank(candidate: Candidate) -> float:
    ranks = [place.stream[1] for place in candidate.occurrences]
    return min((rank for rank in ranks if rank is not None), default=float("inf"))
