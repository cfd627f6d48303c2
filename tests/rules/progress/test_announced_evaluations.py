"""Bars of evaluations that the log announces are not bars of the training."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from stallwatch_rules.progress.tracker import ProgressTracker
from stallwatch_rules.records import Line
from stallwatch_rules.samples import extract


def track(lines: Iterable[Line], tracker: ProgressTracker | None = None) -> ProgressTracker:
    tracker = tracker or ProgressTracker()
    for line in lines:
        tracker.add(extract(line), line)
    return tracker


def log(*texts: str) -> list[Line]:
    return [Line(text, "a.log", number, None, None) for number, text in enumerate(texts, 1)]


def bar(done: int, total: int, seconds: int = 0) -> str:
    return f"{done / total:4.0%}|##        | {done}/{total} [00:{seconds:02}<00:09,  1.00s/it]"


ANNOUNCED = "***** Running Evaluation *****"


def test_announced_long_evaluation_is_not_progress() -> None:
    trained = [bar(99, 100), bar(100, 100, 1)]
    for announced in ([ANNOUNCED], [bar(100, 100, 1) + ANNOUNCED]):
        tracker = track(log(*trained, *announced, bar(0, 400), bar(200, 400, 5)))
        assert (tracker.last_step, tracker.total_steps, tracker.finished) == (100, 100, True)
        lines = log("{'eval_loss': 1.5, 'epoch': 1.0}", bar(400, 400, 9), "{'train_runtime': 60.0}")
        track(lines, tracker)
        assert (tracker.last_step, tracker.total_steps, tracker.finished) == (100, 100, True)


def test_bar_of_an_announced_evaluation_is_not_progress() -> None:
    tracker = track(
        log("step 9/500 loss 2.0", ANNOUNCED, "  Num examples = 5000", bar(0, 625), bar(391, 625))
    )
    assert (tracker.last_step, tracker.total_steps, tracker.phase) == (9, 500, "eval")


@pytest.mark.parametrize("result", ["{'eval_loss': 1.5}", "Evaluated."])
def test_training_after_an_evaluation_is_recognized(result: str) -> None:
    texts = [ANNOUNCED, bar(0, 40), bar(40, 40), result, bar(0, 30), bar(7, 30)]
    tracker = track(log(*texts))
    assert (tracker.last_step, tracker.total_steps, tracker.phase) == (7, 30, "train")


def test_bar_after_an_evaluation_without_a_bar_is_the_trainings() -> None:
    tracker = track(log(ANNOUNCED, "{'eval_loss': 1.5}", bar(0, 30), bar(7, 30)))
    assert (tracker.last_step, tracker.total_steps) == (7, 30)
