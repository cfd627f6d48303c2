"""Progress bars of steps that Keras and Lightning draw into a pipe: a hang is found after each of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from stallwatch_exporter.running.capture import Chunk
from stallwatch_rules.lines.reader import LineReader

LENGTH = 20


def keras_3(step: int, loss: float, width: int) -> str:
    """Draw Keras 3's bar (``keras/src/utils/progbar.py``), which first moves back over the last one."""
    full = step * 20 // LENGTH
    drawn = f"\x1b[1m{step:2d}/{LENGTH}\x1b[0m \x1b[32m{'━' * full}\x1b[0m\x1b[37m{'━' * (20 - full)}\x1b[0m"
    left = f"{LENGTH - step}s" if step < LENGTH else "20s"
    end = "\n" if step == LENGTH else ""
    return "\b" * width + f"\r{drawn} \x1b[1m{left}\x1b[0m 1s/step - accuracy: 0.3125 - loss: {loss:.4f}{end}"


def keras_2(step: int, loss: float, width: int) -> str:
    """Draw Keras 2's bar."""
    full = step * 30 // LENGTH
    bar = "=" * max(full - 1, 0) + (">" if step < LENGTH else "=") + "." * (30 - full)
    found = f"ETA: {LENGTH - step}s" if step < LENGTH else "20s 1s/step"
    end = "\n" if step == LENGTH else ""
    return "\b" * width + f"\r{step:2d}/{LENGTH} [{bar}] - {found} - loss: {loss:.4f}{end}"


def arrow(step: int, loss: float, width: int) -> str:
    """Draw a custom bar that uses only backspaces."""
    return "\b" * width + f"{step}/{LENGTH} {'=' * step}> - loss: {loss:.2f}"


def lightning(step: int, loss: float, width: int) -> str:
    """Draw Lightning's bar for a data set without a length."""
    epoch, clock = width // 100, f"00:{step:02d}<00:00,  1.00it/s"
    return f"\rEpoch {epoch}: |          | {step}/? [{clock}, v_num=0, train_loss={loss:.3f}]"


DRAWN = [keras_3, keras_2, arrow, lightning]


def drawings(draw: Callable[[int, float, int], str], epochs: int) -> Iterator[str]:
    for epoch in range(epochs):
        if draw is not lightning:
            yield f"{'' if draw is not arrow or not epoch else chr(10)}Epoch {epoch + 1}/10\n"
        for step in range(1, LENGTH + 1):
            yield draw(step, 2.0 - 0.01 * step, 100 * epoch + 40 if step > 1 or draw is lightning else 0)


@pytest.mark.parametrize("draw", DRAWN)
def test_epochs_continue_the_step_count(run: Any, draw: Callable[[int, float, int], str]) -> None:
    for text in drawings(draw, 3):
        run.agent.feed(Chunk("stdout", text.encode(), run.now))
        run.wait(1.0)
    progress = run.end("finished", 0).progress
    assert (progress.last_step, progress.finished) == (3 * LENGTH, False)
    assert run.agent._reading.tracker.attempt == 1
    assert run.sent == []


@pytest.mark.parametrize("draw", DRAWN)
def test_hang_after_a_bar_is_found_at_the_threshold(run: Any, draw: Callable[[int, float, int], str]) -> None:
    for text in [*drawings(draw, 2)][:-5]:
        run.agent.feed(Chunk("stdout", text.encode(), run.now))
        run.wait(1.0)
    assert run.sent == []
    run.wait(34.0)
    assert [(each.kind, each.status) for each in run.sent][:1] == [("stall", "open")]


def test_bar_of_an_evaluation_is_a_separate_phase(run: Any) -> None:
    for text in drawings(keras_3, 2):
        run.agent.feed(Chunk("stdout", text.encode(), run.now))
        run.wait(1.0)
    for step in range(1, 6):
        run.agent.feed(Chunk("stdout", f"\b\b\r{step}/5 ━━━━━ 1s 1s/step - loss: 0.9".encode(), run.now))
        run.wait(1.0)
    assert run.agent._reading.tracker.phase == "eval"
    assert run.agent._reading.tracker.last_step == 2 * LENGTH


def test_keras_download_bars_are_not_training(run: Any) -> None:
    run.say("Downloading data from https://example.org/mnist.npz")
    run.say("11490434/11490434 ━━━━━━━━━━━━━━━━━━━━ 0s 0us/step")
    run.steps(1, 5)
    assert run.agent._reading.tracker.last_step == 5


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_backspaces_separate_drawings_for_any_chunks(size: int) -> None:
    data = "".join(drawings(keras_2, 1)).encode()
    reader = LineReader("stdout")
    lines = [line for at in range(0, len(data), size) for line in reader.feed(data[at : at + size])]
    assert [line.text.split()[0] for line in lines] == ["Epoch", *(f"{n}/{LENGTH}" for n in range(1, 21))]
