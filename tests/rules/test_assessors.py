"""The table of assessors: its order, what each may change, and what a reader is shown of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from smallruns import OOM, SIGTERM, STAND, raised, steps

from stallwatch_rules.diagnosis.assessors import ASSESSORS, Assessor, assess, changes_of
from stallwatch_rules.diagnosis.exceptions import Exceptions
from stallwatch_rules.diagnosis.findings import Found
from stallwatch_rules.diagnosis.snapshot import Assessment, Snapshot
from stallwatch_rules.judgements.facts import RunFacts
from stallwatch_rules.pages.catalogue import load_catalogue
from stallwatch_rules.records import Contribution, Diagnosis, FindingChange
from stallwatch_rules.report.explanation import explanation

Diagnose = Callable[..., Diagnosis]
ARCHITECTURE = Path(__file__).parents[2] / "docs" / "verdict.md"


def found(rule: str = "cuda-oom") -> Found:
    page = load_catalogue().pages[rule]
    return Found(page, {}, (), 0, "fatal", page.role, explains=[], facts=set(), proof=[])


def test_every_assessor_comes_after_those_whose_results_it_uses() -> None:
    names = [one.name for one in ASSESSORS]
    assert len(set(names)) == len(names)
    for place, one in enumerate(ASSESSORS):
        assert {*one.after} <= {*names[:place]}, one.name


@pytest.mark.parametrize("one", ASSESSORS, ids=lambda one: one.name)
def test_every_assessor_is_explained_to_readers_and_users(one: Assessor) -> None:
    assert one.assess.__doc__ and one.assess.__doc__.split()[0][0].isupper()
    assert f"| `{one.name}` |" in ARCHITECTURE.read_text()


def test_no_assessor_changes_what_another_one_was_given() -> None:
    def spoils(_: Snapshot, now: Assessment) -> None:
        now.found[0].harm = "harmless"
        now.found[0].explains.append("x")
        now.found[0].facts.add("x")
        now.exceptions.are_the_cause = True
        now.found.append(found("nccl-collective-timeout"))

    first = Assessment([found()], Exceptions(), RunFacts())
    last, contributions = assess(None, first, [Assessor("spoils", (), spoils)])  # type: ignore[arg-type]
    assert (first.found[0].harm, first.found[0].explains, first.found[0].facts) == ("fatal", [], set())
    assert len(first.found) == 1 and not first.exceptions.are_the_cause
    assert len(last.found) == 2
    assert [(one.assessor, len(one.changes)) for one in contributions] == [("matches", 1), ("spoils", 2)]


def test_a_change_is_what_a_reader_sees_of_it() -> None:
    before, same, gone = found(), found("loss-nan"), found("nccl-collective-timeout")
    after = found()
    after.harm, after.note, after.facts = "harmless", "It was survived.", {"x"}
    assert changes_of([before, same, gone], [after, same]) == [
        FindingChange("cuda-oom", "fatal", "harmless", "cause", "cause", "It was survived."),
        FindingChange("nccl-collective-timeout", "fatal", None, gone.role, None),
    ]


def test_the_explanation_begins_with_what_matched_and_ends_with_the_verdict(diagnose: Diagnose) -> None:
    logs = {"rank0.log": f"{steps(1, 5)}{STAND}\n", "rank1.log": raised(OOM) + steps(1, 300)}
    diagnosis = diagnose(logs)
    told = list(explanation(diagnosis))
    assert told[0][0] == "matches" and told[0][1].startswith("+ ")
    assert [text for name, text in told if name == "recoveries"] == [
        "cuda-oom: cause, fatal → cause, harmless here: Not the end of the run: 300 steps followed."
    ]
    assert ("end", "noted of the run: timed-out, lost") in told
    assert told[-2][0] == "Root cause" and told[-2][1].startswith("collective-timeout (")
    assert told[-1] == ("Verdict", "FAILED")
    assert ("结论", "失败") in list(explanation(diagnosis, "zh"))


def test_the_root_cause_is_a_step_of_its_own(diagnose: Diagnose) -> None:
    diagnosis = diagnose(
        f"{steps(1, 5)}{raised(OOM)}{STAND}\n'grad_norm': nan\n{SIGTERM}\nChildFailedError\n"
    )
    step = diagnosis.explained[-1]
    assert (step.assessor, step.changes) == ("root-cause", [])
    assert {one.rule: one.reason for one in step.passed_over} == {
        "collective-timeout": "explained",
        "secondary-sigterm-cascade": "role",
        "child-failed": "role",
        "grad-norm-nan": "harm",
    }
    assert [text for name, text in explanation(diagnosis) if name == "Root cause"][1:] == [
        "explains collective-timeout",
        "does more harm than grad-norm-nan",
        "comes before secondary-sigterm-cascade, child-failed by its role",
    ]
    assert ("根本原因", "可解释 collective-timeout") in list(explanation(diagnosis, "zh"))


def test_an_unknown_exception_is_a_root_cause_too(diagnose: Diagnose) -> None:
    failed = steps(1, 5) + raised("ValueError: what is that")
    diagnosis = diagnose({"rank0.log": f"{failed}{steps(6, 6)}", "rank1.log": f"{steps(1, 6)}{STAND}\n"})
    told = [text for name, text in explanation(diagnosis) if name == "Root cause"]
    assert told[0].startswith("ValueError: what is that")
    assert told[1:] == ["comes before collective-timeout: earlier, or more specific"]
    survived = diagnose(failed + steps(6, 50))
    assert survived.unknown and "Root cause" not in dict(explanation(survived))


def test_nothing_is_contributed_where_nothing_matched(diagnose: Diagnose) -> None:
    assert diagnose({"rank0.log": steps(1, 5)}).explained == [Contribution("matches", [])]
