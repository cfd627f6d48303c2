"""The causal order of findings."""

from __future__ import annotations

import random

from msgspec.structs import replace
from packaged import CATALOGUE

from stallwatch_rules.diagnosis.causes import causal_order, explained, primary
from stallwatch_rules.diagnosis.confidence import BASE, CAPS, WRAPPER
from stallwatch_rules.diagnosis.findings import Occurrence, RuleFinding
from stallwatch_rules.records import Harm, Role

PAGE = CATALOGUE.pages["cuda-oom"]
CAUSE_ALONE, CAUSE_FIRST = BASE["cause", "none"], BASE["cause", "later"]
CAUSE_CHOSEN, SYMPTOM_ALONE = BASE["cause", "unordered"], BASE["symptom", "none"]


def found(
    rule: str,
    role: Role = "cause",
    *at: Occurrence,
    harm: Harm = "fatal",
    explains: tuple[str, ...] = (),
    specificity: int = 0,
    judged: bool = False,
) -> RuleFinding:
    page = replace(PAGE, id=rule, explains=list(explains), patterns=["x" * specificity])
    return RuleFinding(page, {}, at, 0, harm, role, judged=judged)


def at(
    rank: int | None = 0, position: int = 0, time: float | None = None, step: int | None = None
) -> Occurrence:
    return Occurrence(("run.log", rank), position, time, step)


def chosen(*candidates: RuleFinding) -> str | None:
    first = primary(candidates)
    return first and first[0].rule


def test_harmless_findings_have_no_primary() -> None:
    assert primary([]) is None
    assert primary([found("trace-cache", harm="by-progress"), found("advice", harm="harmless")]) is None
    assert primary([found("interrupted", "notice")]) is None


def test_cause_on_another_rank_has_precedence_over_a_symptom() -> None:
    timeout = found("collective-timeout", "symptom", at(0, time=100.0), at(1, time=101.0))
    oom = found("out-of-memory", "cause", at(7, time=500.0))
    assert primary([timeout, oom]) == (oom, CAUSE_ALONE)


def test_symptom_precedes_a_wrapper_with_less_confidence() -> None:
    wrapper = found("child-failed", "wrapper", at(None))
    timeout = found("collective-timeout", "symptom", at(0))
    assert primary([wrapper, timeout]) == (timeout, SYMPTOM_ALONE)
    assert primary([wrapper]) == (wrapper, WRAPPER)


def test_earliest_cause_by_time_is_primary() -> None:
    late, early = found("a-late", "cause", at(0, time=20.0)), found("b-early", "cause", at(1, time=10.0))
    assert primary([late, early]) == (early, CAUSE_FIRST)


def test_order_in_a_stream_is_used_without_times() -> None:
    first = found("b-first", "cause", at(3, position=5, time=9.0))
    second = found("a-second", "cause", at(3, position=50))
    assert chosen(second, first) == "b-first"


def test_step_and_specificity_are_used_without_times() -> None:
    at_step_9 = found("a", "cause", at(1, step=9))
    at_step_4 = found("b", "cause", at(2, step=4))
    assert chosen(at_step_9, at_step_4) == "b"
    general = found("a-general", "cause", at(1), specificity=10)
    specific = found("b-specific", "cause", at(2), specificity=40)
    assert primary([general, specific]) == (specific, CAUSE_CHOSEN)


def test_more_specific_rule_on_one_line_is_primary() -> None:
    general = found("a-general", "cause", at(0, 3, 10.0), specificity=5)
    specific = found("b-specific", "cause", at(0, 3, 10.0), specificity=30)
    assert primary([general, specific]) == (specific, CAUSE_ALONE)


def test_explained_finding_is_not_primary() -> None:
    build = found("build-failed", "cause", at(0, time=50.0), explains=("attribute-missing",))
    attribute = found("attribute-missing", "cause", at(0, time=10.0))
    assert chosen(attribute, build) == "build-failed"
    assert chosen(attribute) == "attribute-missing"


def test_explanations_are_transitive_through_harmful_findings() -> None:
    a = found("a", explains=("b",))
    b = found("b", "symptom", explains=("c",))
    c = found("c", "symptom")
    assert explained([a, b, c])["c"] == {"a", "b"}
    assert "c" not in explained([a, c])
    assert explained([found("a", harm="harmless", explains=("b",)), b]) == {}


def test_mutual_explanations_are_ignored() -> None:
    one = found("one", "cause", at(0, time=2.0), explains=("two",))
    two = found("two", "cause", at(0, time=1.0), explains=("one",))
    assert chosen(one, two) == "two"


def test_consequences_follow_their_cause() -> None:
    cause = found("cause", explains=("symptom",))
    other = found("z-other-cause")
    symptom = found("symptom", "symptom")
    wrapper = found("wrapper", "wrapper")
    notice = found("notice", "notice", harm="harmless")
    order = [c.rule for c in causal_order([notice, wrapper, symptom, other, cause])]
    assert order == ["cause", "symptom", "z-other-cause", "wrapper", "notice"]


def test_confidence_of_judged_findings_is_capped() -> None:
    stall = found("trace-cache", "cause", at(0), judged=True)
    assert primary([stall]) == (stall, CAPS["judged"])


def test_degrading_finding_is_primary_only_without_a_fatal_one() -> None:
    slow = found("slow", "cause", harm="degrading")
    timeout = found("timeout", "symptom")
    assert chosen(slow, timeout) == "timeout"
    assert chosen(slow) == "slow"


def test_unknown_exception_reduces_confidence() -> None:
    oom = found("oom", "cause", at(0))
    assert (primary([oom], unknown_beside=True) or (oom, 1.0))[1] < CAUSE_ALONE


def test_order_of_findings_is_irrelevant() -> None:
    candidates = [
        found("a", "cause", at(0, time=3.0), explains=("e",)),
        found("b", "cause", at(1, time=3.0)),
        found("c", "symptom", at(2)),
        found("d", "wrapper"),
        found("e", "symptom", at(0), harm="harmless"),
    ]
    expected = causal_order(candidates), primary(candidates)
    shuffler = random.Random(1)
    for _ in range(20):
        shuffler.shuffle(candidates)
        assert (causal_order(candidates), primary(candidates)) == expected
