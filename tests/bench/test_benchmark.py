"""The open benchmark: its cases match their index, and one rule judges every tool."""

from __future__ import annotations

import json
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import adapters
import benchmark
import pytest
from adapters import Answer
from benchmark import Case, judge


@pytest.fixture(scope="module")
def cases() -> list[Case]:
    return benchmark.read_cases()


def test_benchmark_has_the_promised_number_of_cases_of_each_kind(cases: list[Case]) -> None:
    assert len(cases) >= 500
    assert sum(not case.failed for case in cases) >= 150
    assert sum(case.hangs for case in cases) >= 60
    assert {case.kind for case in cases} == {"real run", "re-enacted", "generated"}
    halves = Counter(case.sealed for case in cases)
    assert min(halves.values()) > 0.4 * len(cases)
    assert len({case.id for case in cases}) == len(cases)


def test_cases_match_the_index(cases: list[Case]) -> None:
    known = set(adapters.CAUSES)
    for case in cases:
        case.content()  # reading compares the hash
        assert not case.cause or set(case.cause.split("|")) <= known, case.id


def test_modified_case_is_refused(cases: list[Case]) -> None:
    with pytest.raises(Exception, match="does not match its checksum"):
        replace(cases[0], sha256="0" * 64).content()


def test_logs_do_not_name_the_machine(cases: list[Case], tmp_path: Path) -> None:
    for case in cases:
        if case.kind != "generated":
            case.unpack(tmp_path / case.id)
            for path in (tmp_path / case.id).rglob("*"):
                if path.is_file():
                    text = path.read_text(errors="replace")
                    assert str(benchmark.HERE) not in text and "/root/" not in text, (case.id, path.name)


FAILED = Case("a", "real run", "cuda-oom|host-oom", "out of memory|Killed", 1, 1, 2, "", "")
OTHER = replace(FAILED, cause="other", sign="KeyError: 'labels'")
HANG = replace(FAILED, cause="stall", sign="compute_bleu|DataLoader", exit_code=None)
BENIGN = replace(FAILED, cause="", sign="")


@pytest.mark.parametrize(
    ("case", "answer", "outcome"),
    [
        (FAILED, Answer(True, ("host-oom",)), "right"),
        (
            FAILED,
            Answer(True, ("disk-full",), "CUDA out of memory"),
            "wrong",
        ),  # a named class counts before the text
        (FAILED, Answer(True, (), "CUDA out of memory"), "right"),
        (FAILED, Answer(True, ("other",), "CUDA out of memory"), "right"),
        (FAILED, Answer(True, (), "exit status 1"), "wrong"),
        (FAILED, Answer(True), "none"),
        (OTHER, Answer(True, ("other",), "KeyError: 'labels'"), "right"),
        (OTHER, Answer(True, ("other",), "IndexError"), "wrong"),
        (OTHER, Answer(True, ("data-columns",), "KeyError: 'labels'"), "wrong"),
        (HANG, Answer(True, ("stall",), "rank 0 is in compute_bleu"), "right"),
        (HANG, Answer(True, ("stall",), "no step for 31 s"), "wrong"),
        (HANG, Answer(True), "none"),
        (BENIGN, Answer(True, (), "error"), "alarm"),
        (BENIGN, Answer(False, (), "error"), "quiet"),
    ],
)
def test_answers_are_judged_by_class_or_else_by_the_shown_line(
    case: Case, answer: Answer, outcome: str
) -> None:
    assert judge(case, answer) == outcome


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "job.log").write_text("step 1 loss 2.0\nsaved, 0 errors\nKeyError: 'labels'\nbye\n")
    (tmp_path / "run.json").write_text('{"exit_code": 1, "ranks": 1}')
    return tmp_path


def test_simple_tools_read_the_evidence_in_their_name(folder: Path) -> None:
    assert adapters.exit_code(folder) == Answer(True)
    assert adapters.last_line(folder) == Answer(True, (), "bye")
    assert adapters.grep_error(folder) == Answer(True, (), "saved, 0 errors")
    assert adapters.nvrx()(folder) == Answer(True, (), "KeyError: 'labels'")


def test_published_pattern_represents_a_class(folder: Path) -> None:
    (folder / "job.log").write_text("step 1\nCUDA out of memory. Tried\nlater: shape mismatch\n")
    assert adapters.nvrx()(folder).cause == ("cuda-oom",)


def test_drain3_shows_the_first_line_that_healthy_runs_lack(folder: Path, tmp_path: Path) -> None:
    healthy = tmp_path / "healthy"
    healthy.mkdir()
    (healthy / "job.log").write_text("step 1 loss 2.0\nsaved, 0 errors\nbye\n")
    assert adapters.drain_novelty([healthy])(folder).text == "KeyError: 'labels'"


def test_any_command_that_prints_json_can_be_compared(folder: Path) -> None:
    said = {"failed": True, "cause": "other", "text": "KeyError", "rank": 3}
    program = f"import sys, os; assert os.path.exists(sys.argv[1] + '/run.json'); print({json.dumps(said)!r})"
    answer = adapters.command([sys.executable, "-c", program])(folder)
    assert answer == Answer(True, ("other",), "KeyError", 3)


def test_stallwatch_names_a_class_or_the_exception(folder: Path) -> None:
    (folder / "job.log").write_text(
        'step 1 loss 2.0\nTraceback (most recent call last):\n  File "/a/train.py", line 3, in <module>\n'
        "    main()\nCurriculumError: stage 3 is empty\n"
    )
    assert adapters.stallwatch()(folder).cause == ("other",)
    assert "stage 3 is empty" in adapters.stallwatch()(folder).text
