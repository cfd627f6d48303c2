"""Progress in Lightning's bars, and Lightning's message at the end."""

from __future__ import annotations

import pytest
from progress_logs import bar, log, track


def test_cleared_bar_between_epochs_is_not_a_restart() -> None:
    drawn = [(0, 99), (0, 100), (0, 0), (1, 0), (1, 1), (1, 100)]
    tracker = track(log(*(f"Epoch {epoch}: {bar(done, 100)}" for epoch, done in drawn)))
    assert (tracker.attempt, tracker.last_step, tracker.finished) == (1, 200, False)


@pytest.mark.parametrize("why", ["`max_epochs=2` reached.", "`max_steps=60` reached."])
def test_end_of_lightning_is_recognized(why: str) -> None:
    ended = log("Epoch 1: " + bar(100, 100), f"`Trainer.fit` stopped: {why}", "Epoch 1: " + bar(100, 100))
    assert track(ended).finished
    assert not track(log("Epoch 1: " + bar(9, 100), "`Trainer.fit` stopped: No training batches.")).finished


def test_bars_of_lightning_1_are_understood() -> None:
    drawn = [(0, 0), (0, 20), (0, 40), (1, 40), (1, 20), (1, 40), (2, 40), (2, 20)]
    tracker = track(
        log("Training: 0it [00:00, ?it/s]", *(f"Epoch {epoch}: {bar(n, 40)}" for epoch, n in drawn))
    )
    assert (tracker.attempt, tracker.last_step, tracker.trained) == (1, 100, True)


def test_early_stopping_message_is_not_the_end() -> None:
    """The last evaluation, or the epochs that Lightning still requires, can hang."""
    asked = "Monitored metric val_mae did not improve in the last 7 records. Best score: 0.12."
    drawn = [f"Epoch 0: {bar(n, 100)}" for n in (20, 40)]
    assert not track(log(*drawn, f"{asked} Signaling Trainer to stop.")).finished


def test_rich_bar_counts_earlier_epochs() -> None:
    tracker = track(log("Epoch 1/1  ━━━━━━━━━━━━━━━━ 100/100 0:00:01 •        50.29it/s train_loss: 0.003"))
    assert (tracker.last_step, tracker.total_steps, tracker.finished) == (200, 200, True)
    tracker = track(log("Epoch 3/-2 ━━━━━━━━━━━━━━━━ 5/100 0:00:01 • -:--:-- 50.29it/s train_loss: 0.003"))
    assert (tracker.last_step, tracker.total_steps, tracker.finished) == (305, None, False)
