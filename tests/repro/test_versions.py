"""The table of versions: the last observation on every stack equals the expectation and the page."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from versions import results
from versions.attempts import ATTEMPTS, Attempt
from versions.expected import EXPECTED, differences, row_of
from versions.page import PAGE, page
from versions.stacks import STACKS, Stack
from watched import Seen, last_words

SEEN = results.read()
WANTED = results.wanted()
NAMES = [f"{stack.name}-{attempt.name}" for stack, attempt in WANTED]


@pytest.mark.parametrize(("stack", "attempt"), WANTED, ids=NAMES)
def test_last_results_match_the_expectations(stack: Stack, attempt: Attempt) -> None:
    """This test compares recorded observations with the expectations and runs no code.

    ``make test-versions`` observes the code again and records the results.
    """
    assert list(differences(stack, attempt, SEEN[stack.name, attempt.name])) == []


def test_versions_page_is_current(root: Path) -> None:
    assert (root / PAGE).read_text() == page(SEEN)


def test_every_expectation_is_used() -> None:
    used = {id(row_of(stack, attempt)) for stack, attempt in WANTED}
    assert [row for row in EXPECTED if id(row) not in used] == []


def test_stacks_are_sorted_by_version() -> None:
    assert [stack.deepspeed for stack in STACKS] == [
        stack.deepspeed for stack in sorted(STACKS, key=lambda stack: stack.version)
    ]
    known = {attempt.trainer for attempt in ATTEMPTS}
    assert {trainer for stack in STACKS for trainer in stack.trainers} <= known


@pytest.mark.parametrize(
    ("change", "given"),
    [
        ({"primary": "cuda-oom"}, "primary cause"),
        ({"steps": {"0": 1}}, "steps"),
        ({"exceptions": []}, "the probe does not tell"),
        ({"raised": []}, "the log does not tell"),
        ({"invalidations": {"mismatch": 9}}, "invalidations (mismatch)"),
        ({"faults": 1}, "faults inside the probe"),
        ({"versions": {"deepspeed": "0.1"}}, "DeepSpeed's version"),
        ({"exit_code": 0}, "exit code"),
    ],
)
def test_each_difference_is_reported(change: dict[str, object], given: str) -> None:
    stack, attempt = STACKS[1], next(each for each in ATTEMPTS if each.name == "eval-mode")
    seen: Seen = replace(SEEN[stack.name, attempt.name], **change)  # type: ignore[arg-type]
    assert [each for each in differences(stack, attempt, seen) if each.startswith(given)]


def test_last_messages_exclude_summaries() -> None:
    lines = [
        "[default1]:[rank1]: AssertionError: no",
        "[default0]:[rank0]: AssertionError: no",
        "ValueError: yes",
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ",
        "an Error: of no class",
    ]
    assert last_words(lines) == ["AssertionError: no", "ValueError: yes"]
