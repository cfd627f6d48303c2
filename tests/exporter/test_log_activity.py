"""Lines with unknown counters are signs of life in a followed log; other lines are not."""

from __future__ import annotations

import pytest

from stallwatch_exporter.watching.log_activity import MovingBars, MovingLines, Repeats
from stallwatch_rules.pages.catalogue import Catalogue
from stallwatch_rules.records import Line, Match


def alive(moving: MovingLines, texts: list[str], seconds: float = 10.0, start: float = 100.0) -> list[bool]:
    """Return for each line whether it is a sign of life; the lines are `seconds` apart."""
    return [
        moving.add([Line(text, "train.log", number, None, None)], start + number * seconds)
        for number, text in enumerate(texts)
    ]


def trained() -> MovingLines:
    """Return the state after 50 steps of a quarter of a second."""
    moving = MovingLines()
    for step in range(50):
        moving.stepped(50.0 + step / 4)
    return moving


def test_number_that_grows_twice_is_a_sign_of_life() -> None:
    texts = [f"validation batch {batch}/8, accuracy 0.{90 - batch}" for batch in range(1, 5)]
    assert alive(trained(), texts) == [False, False, True, True]


@pytest.mark.parametrize(
    "text",
    [
        "collective is running for {seconds} s",
        "2026-11-23 10:00:{seconds} INFO memory 812 MiB",
        "connection lost, retry {number}",
        "waiting for rank 1 ({number})",
        "Invalidate trace cache @ step {number}: expected module 3, but got module 4",
        "heartbeat {number}",
        "polling the reward server ({number})",
        "not ready, {number} of 100",
        "running for {number}.5 min",
        "tick {number}",
        "nothing new",
    ],
)
def test_clocks_and_repetitions_are_not_a_sign_of_life(text: str) -> None:
    texts = [text.format(number=number, seconds=10 + 10 * number) for number in range(5)]
    assert not any(alive(trained(), texts))


def test_fluctuating_numbers_are_not_a_sign_of_life() -> None:
    assert not any(alive(trained(), [f"gpu memory {size} MiB" for size in (810, 830, 820, 840, 815)]))


def test_counters_printed_during_training_are_not_a_sign_of_life() -> None:
    moving = trained()
    for step in range(4):
        alive(moving, [f"logged {step} scalars"], start=70.0 + step)
        moving.stepped(62.4 + step / 4)
    assert not any(alive(moving, [f"logged {number} scalars" for number in range(4, 9)]))


def test_step_resets_the_counters() -> None:
    moving = trained()
    assert alive(moving, ["val 1/8", "val 2/8"]) == [False, False]
    moving.stepped(130.0)
    assert alive(moving, ["val 3/8", "val 4/8"], start=140.0) == [False, False]


def matches(catalogue: Catalogue, rule: str, count: int) -> list[Match]:
    assert rule in catalogue.pages
    return [Match(rule, Line("text", "train.log", number, None, None), {}) for number in range(count)]


def test_message_repeats_if_it_is_more_frequent_than_during_steps(
    catalogue: Catalogue,
) -> None:
    repeats = Repeats(catalogue)
    for _ in range(3):
        repeats.add(matches(catalogue, "zero3-trace-cache-invalidated", 2), progressed=True)
    repeats.add(matches(catalogue, "zero3-trace-cache-invalidated", 5), progressed=False)
    assert not repeats.now()
    repeats.add(matches(catalogue, "zero3-trace-cache-invalidated", 1), progressed=False)
    assert repeats.now()
    repeats.add((), progressed=True)
    assert not repeats.now()


def test_repeated_harmless_message_is_not_reported(catalogue: Catalogue) -> None:
    repeats = Repeats(catalogue)
    harmless = next(page.id for page in catalogue.pages.values() if page.harm == "harmless")
    repeats.add(matches(catalogue, harmless, 50), progressed=False)
    assert not repeats.now()


def test_bar_moves_if_its_count_increases() -> None:
    bars = MovingBars()

    def bar(step: int, total: int) -> Line:
        return Line(f"bar: {step / total:.0%}|██▌   | {step}/{total} [00:30<00:10,  1.03s/it]", "stderr", 1)

    assert not bars.add([bar(100, 220), bar(0, 40)]), "their first sight"
    assert bars.add([bar(1, 40)])
    assert not bars.add([bar(1, 40), bar(100, 220)]), "drawn again"
    assert not bars.add([bar(0, 40)]) and bars.add([bar(1, 40)]), "the next evaluation"
    keras = ["3/60 [==>......] - loss: 0.2", "4/60 [==>......] - loss: 0.2"]
    assert [bars.add([Line(text, "stdout", 1)]) for text in keras] == [False, True]
