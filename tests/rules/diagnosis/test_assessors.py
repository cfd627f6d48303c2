"""The table of assessors: their order, their permitted changes, and their visible effect."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from smallruns import FAILED, FINISHED, OOM, SIGTERM, STAND, killed_by, raised, steps

from stallwatch_rules.diagnosis.assessors import ASSESSORS, Assessor, assess, changes_of
from stallwatch_rules.diagnosis.exceptions import Exceptions
from stallwatch_rules.diagnosis.findings import RuleFinding
from stallwatch_rules.diagnosis.snapshot import Assessment, Change, RemovedFinding, Snapshot, StallEnds
from stallwatch_rules.endings import Ending, MemoryUse
from stallwatch_rules.judgements.concerns import NAN_LOSSES, SEEN, evidence_of
from stallwatch_rules.judgements.facts import RunFacts
from stallwatch_rules.matching.matcher import lines_of
from stallwatch_rules.pages.catalogue import Catalogue, load_catalogue
from stallwatch_rules.reading import RunReading
from stallwatch_rules.records import Contribution, Diagnosis, FindingChange, Line, Match
from stallwatch_rules.report.explanation import explanation
from stallwatch_rules.stream import SOURCE

Diagnose = Callable[..., Diagnosis]
GIB = 2**30
JSON = "json.decoder.JSONDecodeError: Extra data: line 2 column 1 (char 317)"
NAN_BACKWARD = "RuntimeError: Function 'LogSoftmaxBackward0' returned nan values in its 0th output."
WORKER = "RuntimeError: DataLoader worker (pid 3882) is killed by signal: Killed. "
LOST_PEER = (
    "[rank0]: ncclRemoteError: A call failed possibly due to a network error or a remote process exiting"
    " prematurely."
)
TRACE_CACHE = "Invalidate trace cache @ step 0 and module 731: cache has only 0 modules"
KILLED = (
    "torch/distributed/elastic/multiprocessing/api.py:984] failed (exitcode: -9) local_rank: 0 (pid: 2341) of"
    " binary: /usr/bin/python\n"
)
FIRST_ABORTED = """\
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
Failures:
  rank      : 0 (local_rank: 0)
  exitcode  : -15 (pid: 901)
Root Cause (first observed failure):
  rank      : 3 (local_rank: 3)
  exitcode  : -6 (pid: 904)
  traceback : Signal 6 (SIGABRT) received by PID 904
"""
CANCELLED = "slurmstepd: error: *** STEP 88131.0 ON n1 CANCELLED AT 2026-03-14T09:40:12 ***\n"
ENDED_STALL = "".join(
    f"[2026-03-14 02:{12 * n // 60:02d}:{12 * n % 60:02d}] {{'loss': {3 - n / 100}, 'step': {n}}}\n"
    for n in range(1, 101)
)
ENDED_STALL += "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-03-14T09:40:12 DUE TO TIME LIMIT ***\n"
FAR_OFF = MemoryUse(counted=False, held=12 * GIB, limit=128 * GIB, ranks={0: 5 * GIB, 1: 6 * GIB})
BEGUN = steps(1, 5)

#: Assessor: text of a log, further facts, and a part of the text that the assessor contributes.
CASES: dict[str, tuple[str, dict[str, Any], str]] = {
    "recoveries": (
        BEGUN + raised(OOM) + steps(6, 300),
        {},
        "cuda-oom: cause, fatal → cause, harmless in this run",
    ),
    "raised": (BEGUN + raised(NAN_BACKWARD), {}, "grad-norm-nan: cause, degrading → cause, fatal"),
    "excuses": (f"{BEGUN}{STAND}\n", {"ending": FINISHED}, "→ symptom, harmless in this run"),
    "known-ending": (BEGUN, {"ending": Ending("oom-killed", 137, "SIGKILL")}, "+ host-oom-sigkill"),
    "handled-exceptions": (
        f"{BEGUN}{JSON}\n",
        {},
        "text-undecodable: cause, depends on progress → cause, fatal",
    ),
    "teardown": (
        f"{BEGUN}{raised(OOM)}Exception ignored in: <function Loader.__del__ at 0x7f00>\n{raised(WORKER)}",
        {},
        "dataloader-worker-killed: cause, fatal → cause, harmless in this run",
    ),
    "failed-starts": (
        "run.sh: line 3: torchrunn: command not found\n",
        {},
        "program-not-found: cause, depends on progress → cause, fatal",
    ),
    "end": (f"{BEGUN}{STAND}\n", {}, "facts about the run: timed-out, lost"),
    "progress": (
        f"{BEGUN}{TRACE_CACHE}\n{steps(6, 65)}",
        {},
        "depends on progress → cause, harmless in this run",
    ),
    "conclusions": (ENDED_STALL, {}, "+ silent-hang-no-error"),
    "stall-ends": (ENDED_STALL, {}, "slurm-time-limit: cause, fatal → symptom, fatal"),
    "signals": (BEGUN, {"ending": killed_by("SIGSEGV")}, "+ process-segfault"),
    "terminations": (f"{BEGUN}{raised(OOM)}{SIGTERM}\n", {}, "The launcher ended the other processes"),
    "kills": (BEGUN + KILLED, {}, "facts about host-oom-sigkill: signal-only"),
    "memory": (BEGUN + KILLED, {"ending": FAILED, "memory": FAR_OFF}, "+ process-killed-from-outside"),
    "aftermath": (BEGUN + raised(OOM) + CANCELLED, {}, "slurm-cancelled: cause, fatal → symptom, fatal"),
    "first-failure": (
        f"{BEGUN}{LOST_PEER}\n{FIRST_ABORTED}",
        {},
        "process-sigabrt: symptom, fatal → cause, fatal",
    ),
    "abort-at-exit": (
        f"{steps(1, 20, total=20)}Training completed.\nFatal Python error: Aborted\n",
        {},
        "process-sigabrt: symptom, fatal → symptom, degrading",
    ),
    "graceful-shutdown": (
        f"{BEGUN}[rank: 0] Received SIGTERM: 15\n",
        {},
        "+ secondary-sigterm-cascade (symptom,",
    ),
    "distance": (
        BEGUN + raised(OOM) + "".join(f"waiting for {n} more\n" for n in range(600)),
        {},
        "facts about cuda-oom: long-before-the-end",
    ),
    "explanations": (ENDED_STALL, {}, "silent-hang-no-error explains slurm-time-limit"),
}
ARCHITECTURE = Path(__file__).parents[3] / "docs" / "verdict.md"


def found(rule: str = "cuda-oom") -> RuleFinding:
    page = load_catalogue().pages[rule]
    return RuleFinding(page, {}, (), 0, "fatal", page.role)


def test_assessors_are_sorted_by_their_dependencies() -> None:
    names = [item.name for item in ASSESSORS]
    assert len(set(names)) == len(names)
    for place, entry in enumerate(ASSESSORS):
        assert {*entry.after} <= {*names[:place]}, entry.name


@pytest.mark.parametrize("one", ASSESSORS, ids=lambda item: item.name)
def test_every_assessor_is_documented(one: Assessor) -> None:
    assert one.assess.__doc__ and one.assess.__doc__.split()[0][0].isupper()
    assert f"| `{one.name}` |" in ARCHITECTURE.read_text()
    assert "Example: " in one.assess.__doc__ and one.name in {*CASES, "concerns"}


@pytest.mark.parametrize("name", CASES)
def test_each_assessor_contributes_its_result(catalogue: Catalogue, name: str) -> None:
    text, known, contributed = CASES[name]
    reading = RunReading(catalogue)
    reading.feed(lines_of(text))
    messages = [line for step, line in explanation(reading.diagnose(**known)) if step == name]
    assert [line for line in messages if contributed in line], messages


def test_warning_of_the_probe_is_assessed(catalogue: Catalogue) -> None:
    seen = {SEEN: NAN_LOSSES, "value": "nan", "count": "3"}
    reading = RunReading(catalogue)
    reading.feed(lines_of(BEGUN))
    reading.take_report(Match("loss-nan", Line(evidence_of(seen), SOURCE, 1, 0, None), seen, 5))
    messages = [line for step, line in explanation(reading.diagnose()) if step == "concerns"]
    assert messages and messages[0].startswith("loss-nan")


def test_changes_keep_the_order_and_do_not_modify_their_input() -> None:
    oom, timeout, nan = found(), found("nccl-collective-timeout"), found("loss-nan")
    changed = oom.with_harm("harmless", "It was survived.").with_facts("x")

    def judges(_: Snapshot, now: Assessment) -> Iterator[Change]:
        yield from (nan, RemovedFinding(timeout.rule), changed, StallEnds(frozenset([oom.rule])))
        assert list(now.found) == [oom, timeout] and not now.ends

    first = Assessment([oom, timeout], Exceptions(), RunFacts())
    last, contributions = assess(None, first, [Assessor("judges", (), judges)])  # type: ignore[arg-type]
    assert list(first.found) == [oom, timeout] and oom.harm == "fatal" and not oom.facts
    assert list(last.found) == [changed, nan] and last.ends == {oom.rule}
    assert [(contribution.assessor, len(contribution.changes)) for contribution in contributions] == [
        ("matches", 2),
        ("judges", 3),
    ]


def test_change_is_described_by_its_visible_effect() -> None:
    before, same, gone = found(), found("loss-nan"), found("nccl-collective-timeout")
    after = before.with_harm("harmless", "It was survived.").with_facts("x")
    assert changes_of([before, same, gone], [after, same]) == [
        FindingChange("cuda-oom", "fatal", "harmless", "cause", "cause", "It was survived."),
        FindingChange("nccl-collective-timeout", "fatal", None, gone.role, None),
    ]


def test_explanation_begins_with_matches_and_ends_with_the_verdict(diagnose: Diagnose) -> None:
    logs = {"rank0.log": f"{steps(1, 5)}{STAND}\n", "rank1.log": raised(OOM) + steps(1, 300)}
    diagnosis = diagnose(logs)
    given = list(explanation(diagnosis))
    assert given[0][0] == "matches" and given[0][1].startswith("+ ")
    assert [text for name, text in given if name == "recoveries"] == [
        "cuda-oom: cause, fatal → cause, harmless in this run: This failure did not end the"
        " run: 300 steps followed."
    ]
    assert ("end", "facts about the run: timed-out, lost") in given
    assert given[-2][0] == "Root cause" and given[-2][1].startswith("collective-timeout (")
    assert given[-1] == ("Verdict", "FAILED")
    assert ("结论", "失败") in list(explanation(diagnosis, "zh"))


def test_root_cause_is_a_separate_step(diagnose: Diagnose) -> None:
    diagnosis = diagnose(
        f"{steps(1, 5)}{raised(OOM)}{STAND}\n'grad_norm': nan\n{SIGTERM}\nChildFailedError\n"
    )
    step = diagnosis.explained[-1]
    assert (step.assessor, step.changes) == ("root-cause", [])
    assert {item.rule: item.reason for item in step.passed_over} == {
        "collective-timeout": "explained",
        "secondary-sigterm-cascade": "role",
        "child-failed": "role",
        "grad-norm-nan": "harm",
    }
    assert [text for name, text in explanation(diagnosis) if name == "Root cause"][1:] == [
        "explains collective-timeout",
        "does more harm than grad-norm-nan",
        "comes before secondary-sigterm-cascade, child-failed because of its role",
    ]
    assert ("根因", "能解释 collective-timeout") in list(explanation(diagnosis, "zh"))


def test_unknown_exception_can_be_the_root_cause(diagnose: Diagnose) -> None:
    failed = steps(1, 5) + raised("ValueError: what is that")
    diagnosis = diagnose({"rank0.log": f"{failed}{steps(6, 6)}", "rank1.log": f"{steps(1, 6)}{STAND}\n"})
    messages = [text for name, text in explanation(diagnosis) if name == "Root cause"]
    assert messages[0].startswith("ValueError: what is that")
    assert messages[1:] == ["comes before collective-timeout, because it is earlier or more specific"]
    survived = diagnose(failed + steps(6, 50))
    assert survived.unknown and "Root cause" not in dict(explanation(survived))


def test_log_without_matches_has_no_contributions(diagnose: Diagnose) -> None:
    assert diagnose({"rank0.log": steps(1, 5)}).explained == [Contribution("matches", [])]
