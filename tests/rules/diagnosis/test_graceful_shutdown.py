"""Runs that report in their own words that a signal requested their end."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from smallruns import FAILED, stamped

from stallwatch_rules.locale import render
from stallwatch_rules.records import Diagnosis
from stallwatch_rules.report.phrases import headline

Ask = Callable[..., Diagnosis]
STEPS = [(10.0 * step, f"INFO step={step} loss={2 - step / 1000:.3f}") for step in range(1, 40)]
SAID = "WARNING received SIGTERM, saving emergency checkpoint"
RULE = "secondary-sigterm-cascade"


def asked(found: Diagnosis) -> list[str]:
    return [finding.rule for finding in found.findings if "it received a signal" in finding.note]


@pytest.mark.parametrize(
    "said",
    [
        SAID,
        "INFO exiting with code 0 after SIGTERM",
        "INFO SIGTERM received, will checkpoint",
        "[rank: 0] Received SIGTERM: 15",
        "Caught signal 15, leaving the loop",
        "got SIGUSR1 from the scheduler: checkpoint and requeue",
        "收到 SIGTERM 信号，正在保存 checkpoint",
    ],
)
def test_graceful_shutdown_is_not_a_failure(diagnose: Ask, said: str) -> None:
    end = [(395.0, said), (412.0, "INFO saved checkpoint to /ckpt/emergency-39")]
    found = diagnose(stamped(STEPS + end))
    assert (found.verdict, found.interrupted_by, found.primary) == ("interrupted", "signal", None)
    assert asked(found) == [RULE] and found.findings[0].harm == "harmless"
    assert [
        note
        for note in found.notes
        if note.startswith("The log mentions the signal at run.log:40: ") and said in note
    ]
    assert "without a word" not in " ".join(found.notes)
    facts = diagnose(stamped(STEPS + end), language=None)
    assert render(headline(facts)).startswith("The run ended because it received a signal")
    assert render(headline(facts), "zh").startswith("训练收到信号后退出")


@pytest.mark.parametrize(
    "said",
    [
        "INFO registered a handler for SIGTERM",
        "INFO on SIGTERM the run will save a checkpoint",
        "[rank: 0] Bypassing SIGTERM: 15",
        "INFO saved checkpoint to /ckpt/39",
    ],
)
def test_other_messages_are_not_a_graceful_shutdown(diagnose: Ask, said: str) -> None:
    found = diagnose(stamped([*STEPS, (395.0, said)]))
    assert asked(found) == [] and "stops mid-run at step" in " ".join(found.notes)


def test_run_that_continued_was_not_ended(diagnose: Ask) -> None:
    again = [(10.0 * step, f"INFO step={step} loss={2 - step / 1000:.3f}") for step in range(40, 60)]
    found = diagnose(stamped([*STEPS, (395.0, "[rank: 0] Received SIGTERM: 15"), *again]))
    assert asked(found) == [] and found.verdict == "unfinished"


def test_steps_in_progress_do_not_contradict_a_signal(diagnose: Ask) -> None:
    said = (395.0, "[rank3]: Received SIGTERM, saving checkpoint and exiting")
    more = [(10.0 * step, f"INFO step={step} loss={2 - step / 1000:.3f}") for step in (40, 41)]
    found = diagnose(stamped([*STEPS, said, *more]))
    assert (asked(found), found.verdict) == ([RULE], "interrupted")


def test_signal_report_of_ray_counts(diagnose: Ask) -> None:
    stack = "PC: @     0x7a30bba98d71  (unknown)  (unknown)"
    end = [(395.0, "*** SIGTERM received at time=1748300290 on cpu 8 ***"), (395.0, stack)]
    found = diagnose(stamped([*STEPS, *end]))
    assert (asked(found), found.verdict) == ([RULE], "interrupted")
    assert "without a word" not in " ".join(found.notes)
    assert asked(diagnose(stamped([*STEPS[:20], *end, *STEPS[20:]]))) == []


def test_run_with_later_steps_was_not_ended(diagnose: Ask) -> None:
    found = diagnose(stamped([*STEPS[:20], (205.0, SAID), *STEPS[20:]]))
    assert asked(found) == [] and "stops mid-run at step" in " ".join(found.notes)


def test_failure_has_precedence_over_a_shutdown(diagnose: Ask) -> None:
    oom = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
    found = diagnose(stamped([*STEPS, (395.0, oom), (396.0, SAID)]))
    assert found.primary is not None and found.primary.rule == "cuda-oom" and asked(found) == []
    assert asked(diagnose(stamped([*STEPS, (396.0, SAID)]), ending=FAILED)) == []
    assert diagnose("INFO server is up\n" + SAID + "\n").verdict == "no-training-log"
