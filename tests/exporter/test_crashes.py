"""Processes whose end makes a run a failure although its command returned 0."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from stallwatch_exporter.running.crashes import (
    ProcessEnd,
    Reached,
    codes_of,
    crash_among,
    exit_code_loss,
    failed_beside,
    still_running,
)
from stallwatch_rules.endings import SurvivingRank

EARLY = Reached(step=300, total=6250, at=100.0)
DONE = Reached(step=6250, total=6250, at=100.0, complete=True)
OPEN = Reached(step=300, at=100.0)  # the total of steps is unknown


def rank(number: int, code: int | None = 0, at: float = 101.0, step: int = 300, **more: Any) -> ProcessEnd:
    more = {"left": True if code == 0 else None, **more}
    return ProcessEnd(10 + number, number, code=code, ended_at=at, probed=True, step=step, **more)


def attempt(pid: int, code: int | None, at: float, step: int | None, *words: str) -> ProcessEnd:
    """Return the end of rank 0 in one attempt, which took ten seconds."""
    return ProcessEnd(
        pid, 0, code=code, ended_at=at, probed=True, step=step, started=at - 10, words=("python", *words)
    )


def program(pid: int, code: int | None = 0, at: float = 101.0, started: float | None = None) -> ProcessEnd:
    return ProcessEnd(pid, code=code, ended_at=at, started=started)


def trainer(pid: int, code: int, started: float, at: float, step: int) -> ProcessEnd:
    """Return the end of a training program that a script started, with the only rank of its run."""
    return ProcessEnd(pid, 0, code=code, started=started, ended_at=at, probed=True, step=step, program=True)


RAYS = ProcessEnd(10, 0, code=-9, ended_at=101.0, probed=True, step=300, words=("ray::Learner.learn",))
CHECK = ProcessEnd(9, code=1, ended_at=50.0, words=("python", "-c", "import flash_attn"))
CONFIGURED = ProcessEnd(9, code=1, ended_at=50.0, words=("python", "train.py", "-c", "a.yaml"))
DRIVER = ProcessEnd(9, code=0, ended_at=103.0, words=("python", "ppo.py"))


@pytest.mark.parametrize(
    ("ends", "reached", "log_fails"),
    [
        ([rank(0)], EARLY, True),  # the log shows that the exception was handled
        ([rank(0), program(9, -9)], EARLY, True),  # a helper beside a rank
        ([rank(0, -9, at=50, step=100), rank(0, at=101)], EARLY, False),  # tried again
        # the retry finds all steps done
        ([attempt(1, 1, 50, 6250, "train.py"), attempt(2, 0, 70, None, "train.py")], DONE, False),
        ([attempt(1, None, 50, 6250, "train.py"), attempt(2, 0, 70, None, "train.py")], EARLY, True),
        ([rank(0, -11, left=True)], EARLY, False),  # a crash in teardown
        ([rank(0, step=6250), rank(1, -15, step=6250)], DONE, False),
        ([rank(0, at=101), rank(1, -15, at=101.5)], OPEN, False),  # a script ends the remaining rank
        ([rank(0, None, left=True)], EARLY, True),  # the rank's own report, if the kernel has none
        ([rank(0, None, step=6250)], DONE, False),  # os._exit at the end
        ([program(9, -9), program(8, 0)], OPEN, False),  # either of the two may have trained
        ([program(9, 1, at=50), program(8, 0)], EARLY, True),  # more steps followed
        ([program(9, None)], DONE, True),
        ([CHECK, program(8, 0, started=51)], Reached(), True),  # the script continued after the check
        ([trainer(8, 1, 10, 50, 99), trainer(9, 0, 50.9, 101, 300)], EARLY, False),  # one after the other
        # a Python program starts its trials and handles their failures
        ([rank(0, 1, at=50, step=99, started=10), rank(0, step=300, started=10)], EARLY, False),
        ([RAYS, DRIVER], EARLY, False),  # Ray ends its workers as it shuts down
        ([], EARLY, False),
    ],
)
def test_successful_ends_are_not_a_crash(ends: list[ProcessEnd], reached: Reached, log_fails: bool) -> None:
    assert crash_among(ends, reached, lambda: log_fails) is None


@pytest.mark.parametrize(
    ("ends", "reached", "log_fails", "found"),
    [
        ([rank(0), rank(1, -9, at=60, step=150)], EARLY, False, (1, -9, "process", 150)),
        ([rank(0, 1, at=102), rank(1, -9, at=101)], EARLY, False, (1, -9, "process", 300)),  # the first crash
        ([rank(0), rank(1, None)], EARLY, False, (1, None, "silence", 300)),
        ([rank(0, -9), DRIVER], OPEN, False, (0, -9, "process", 300)),
        ([rank(0), rank(1, None, left=False)], EARLY, False, (1, None, "process", 300)),
        ([rank(0, step=6250), rank(1, -9, at=60, step=150)], DONE, False, (1, -9, "process", 150)),
        ([rank(0, 1, step=6250)], DONE, False, (0, 1, "process", 6250)),  # in the last save
        # a program after the crash, or beside it, is not a retry, and a failing retry does not count
        (
            [attempt(1, 1, 50, 300, "train.py"), attempt(2, 0, 70, None, "merge.py")],
            EARLY,
            False,
            (0, 1, "process", 300),
        ),
        (
            [attempt(1, 1, 50, 300, "train.py"), attempt(2, 0, 55, None, "train.py")],
            EARLY,
            False,
            (0, 1, "process", 300),
        ),
        (
            [attempt(1, 1, 50, 300, "train.py"), attempt(2, 2, 70, None, "train.py")],
            EARLY,
            False,
            (0, 1, "process", 300),
        ),
        ([rank(0, -15)], EARLY, False, (0, -15, "process", 300)),
        # two programs in the background of a script
        ([trainer(8, 1, 10, 50, 99), trainer(9, 0, 10, 101, 300)], EARLY, False, (0, 1, "process", 99)),
        ([program(9, -9)], OPEN, False, (None, -9, "process", 300)),
        ([program(9, -9), program(8, 0)], EARLY, False, (None, -9, "process", 300)),
        ([program(9, 1), program(8, 0)], OPEN, True, (None, 1, "process", 300)),
        ([program(9, None)], EARLY, True, (None, None, "log", 300)),
        ([CONFIGURED, program(8, 0, started=51)], Reached(), True, (None, 1, "process", None)),
        (
            [CHECK, program(8, 0, started=40)],
            Reached(),
            True,
            (None, 1, "process", None),
        ),  # beside the program
        ([], EARLY, True, (None, None, "log", 300)),
    ],
)
def test_crash_is_found_with_rank_and_code(
    ends: list[ProcessEnd],
    reached: Reached,
    log_fails: bool,
    found: tuple[int | None, int | None, str, int | None],
) -> None:
    crash = crash_among(ends, reached, lambda: log_fails)
    assert crash is not None and (crash.rank, crash.code, crash.by, crash.step) == found


def test_last_lines_can_be_read_after_the_end_of_a_program() -> None:
    dead = ProcessEnd(9, code=-9, ended_at=101.0, run_step=299)
    crash = crash_among([dead], EARLY, lambda: False)
    assert crash is not None and crash.step == 300


def test_surviving_ranks_are_listed_without_other_programs() -> None:
    ends = [ProcessEnd(7, 2, up=True), ProcessEnd(8, up=True), rank(0)]
    assert still_running(ends) == [SurvivingRank(2, 7)]
    assert crash_among(ends, EARLY, lambda: True) is None


@pytest.mark.parametrize(
    ("script", "how"),
    [
        ("python t.py 2>&1 | tee log", "pipe"),
        ("python t.py |& tee log", "pipe"),
        ("set -o pipefail; python t.py | tee log", ""),
        ("python t.py || true", ""),
        ("a & b & wait", "wait"),
        ("a & b & wait; echo done", "wait"),
        ("a & wait $!", ""),
        ("", ""),
    ],
)
def test_reason_for_a_lost_exit_code_is_found(script: str, how: str) -> None:
    assert exit_code_loss(script) == how


def test_exit_codes_are_in_order_of_the_ends() -> None:
    ends = [rank(0, -15, at=102), rank(1, -9, at=101), rank(2, 0), rank(3, None, at=103), program(9, 1)]
    assert list(codes_of([*ends, RAYS]).items()) == [(1, -9), (0, -15)], "what nobody saw is left out"


def test_program_that_failed_is_known_while_another_one_trains() -> None:
    failed, going_on = trainer(8, 1, 10, 50, 99), replace(trainer(9, 0, 10, 0, 300), up=True, code=None)
    assert failed_beside([failed, going_on]) == failed
    for ends in (
        [failed, trainer(9, 0, 10, 101, 300)],  # the run is over
        [failed, replace(going_on, started=51.0)],  # a restart
        [failed, replace(going_on, program=False)],  # a trial of a Python program
        [failed, replace(going_on, rank=1)],  # a run of several ranks, which the launcher ends
        [replace(failed, code=-15), going_on],
        [replace(failed, code=0), going_on],
    ):
        assert failed_beside(ends) is None
