"""Losses that are no longer printed while steps continue, and evaluations, which print none."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from smallruns import primary

from stallwatch_rules.lines.reader import LineReader
from stallwatch_rules.locale import rendered
from stallwatch_rules.matching.matcher import Matcher
from stallwatch_rules.pages.catalogue import Catalogue
from stallwatch_rules.reading import RunReading
from stallwatch_rules.records import Diagnosis

Diagnose = Callable[[str], Diagnosis]


@pytest.fixture
def diagnose(catalogue: Catalogue, matcher: Matcher) -> Diagnose:
    def ask(text: str) -> Diagnosis:
        reading, reader = RunReading(catalogue, matcher), LineReader("run.log")
        reading.feed([*reader.feed(text.encode()), *reader.finish()])
        return rendered(reading.diagnose())

    return ask


def drawn(step: int, total: int) -> str:
    return f"\r{step / total:4.0%}|##        | {step}/{total} [00:{step % 60:02}<01:00,  2.00it/s]"


def trained(first: int, last: int, *, epoch: float | None = None) -> str:
    found = ""
    for step in range(first, last + 1):
        found += drawn(step, 500)
        if step % 10 == 0:
            at = step / 500 if epoch is None else epoch
            found += f"\n{{'loss': {2 - step / 500:.4f}, 'grad_norm': 1.0, 'epoch': {at:.2f}}}\n"
    return found


EVALUATED = "".join(drawn(step, 625) for step in range(400))


@pytest.mark.parametrize(
    "announced", ["", "***** Running Evaluation *****\n", "\n***** Running Evaluation *****\n"]
)
def test_missing_losses_during_an_evaluation_are_normal(diagnose: Diagnose, announced: str) -> None:
    diagnosis = diagnose(trained(1, 100) + announced + EVALUATED)
    assert (diagnosis.verdict, primary(diagnosis)) == ("unfinished", None)
    assert (diagnosis.progress.last_step, diagnosis.progress.total_steps) == (100, 500)
    again = trained(1, 100) + 2 * (announced + EVALUATED + "\n{'eval_loss': 1.6}\n")
    assert diagnose(again).verdict == "unfinished"


def test_losses_that_return_are_not_missing(diagnose: Diagnose) -> None:
    """The epoch replaces the step and has two digits: it is equal on many lines of a long run."""
    log = trained(1, 100) + "".join(drawn(step, 500) for step in range(101, 400))
    assert primary(diagnose(log)) == "loss-frozen"
    assert diagnose(log + trained(400, 430, epoch=0.20)).verdict == "unfinished"


def test_losses_missing_after_an_evaluation_are_reported(diagnose: Diagnose) -> None:
    announced = "\n***** Running Evaluation *****\n"
    log = trained(1, 100) + announced + EVALUATED + "\n{'eval_loss': 1.6, 'epoch': 0.2}\n"
    assert primary(diagnose(log + "".join(drawn(step, 500) for step in range(101, 320)))) == "loss-frozen"


def test_loss_among_unknown_numbers_is_not_missing(diagnose: Diagnose) -> None:
    """LeRobot prints ``step:50K smpl:2M ep:5K loss:0.001``, and its checkpoints name their step in full."""
    shortened = "\nINFO ot_train.py:357 step:1K smpl:6K ep:1K loss:1.601\n"
    drawn_on = [drawn(step, 500) for step in range(101, 400)]
    log = trained(1, 100) + "".join(drawn_on)
    assert primary(diagnose(log)) == "loss-frozen"
    assert diagnose(trained(1, 100) + shortened.join(drawn_on)).verdict == "unfinished"
    assert diagnose(trained(1, 100) + shortened + drawn_on[-1]).verdict == "unfinished", "within these steps"


@pytest.mark.parametrize("line", ["episode {} reward 20.1", "batch {} acc 0.91", "frame {}: psnr 20.3"])
def test_counters_after_the_training_need_no_losses(diagnose: Diagnose, line: str) -> None:
    log = "".join(f"Epoch {epoch} loss: {5 - epoch / 50:.4f}\n" for epoch in range(1, 61))
    assert diagnose(log + "".join(f"{line.format(n)}\n" for n in range(1, 400))).verdict == "unfinished"
    without = "".join(f"Epoch {epoch} acc: {epoch / 200:.4f}\n" for epoch in range(61, 200))
    assert primary(diagnose(log + without)) == "loss-frozen"


def test_evaluations_with_their_own_step_lines_do_not_hide_losses(diagnose: Diagnose) -> None:
    log = ""
    for step in range(8, 1025, 8):
        log += f"Step {step} loss: {9 - step / 500:.4f}\n"
        log += f"Step {step} eval_acc: {step / 2000:.3f}\n" if step % 256 == 0 else ""
    assert diagnose(log).verdict == "unfinished"
    without = "".join(f"Step {step} eval_acc: {step / 2000:.3f}\n" for step in range(1280, 4000, 256))
    assert primary(diagnose(log + without)) == "loss-frozen"
