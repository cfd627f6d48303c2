"""Series are learned from lines that recur and advance: the progress of a run, and whether it is complete."""

from __future__ import annotations

import pytest
from shapes import FIRST_HALF, OTHERS, SECOND_HALF, Other, Shape

from stallwatch_rules.lines.reader import LineReader
from stallwatch_rules.pages.catalogue import Catalogue
from stallwatch_rules.progress.tracker import Finish, ProgressTracker
from stallwatch_rules.reading import RunReading
from stallwatch_rules.records import Line
from stallwatch_rules.samples.series import SeriesReader
from stallwatch_rules.samples.table import COLUMNS, RowReader

SHAPES = [*FIRST_HALF, *SECOND_HALF]


def read(text: str) -> ProgressTracker:
    reading, lines = RunReading(Catalogue({})), LineReader("train.log")
    reading.feed(lines.feed(text.encode()) + lines.finish())
    return reading.tracker


def named(shapes: list[Shape] | tuple[Other, ...]) -> list[str]:
    return [shape.name for shape in shapes]


@pytest.mark.parametrize("shape", SHAPES, ids=named(SHAPES))
def test_last_step_and_end_of_a_run_are_found(shape: Shape) -> None:
    tracker = read(shape.text(1, whole=True))
    assert tracker.last_step is not None
    if shape.shown:
        assert tracker.last_step == shape.last(whole=True)
    if shape.ends:
        assert tracker.finish is not None


@pytest.mark.parametrize("shape", SHAPES, ids=named(SHAPES))
def test_truncated_run_is_not_complete(shape: Shape) -> None:
    tracker = read(shape.text(1, whole=False))
    if shape.shown:
        assert tracker.last_step == shape.last(whole=False)
    assert tracker.finish is None


@pytest.mark.parametrize("other", OTHERS, ids=named(OTHERS))
def test_other_increasing_numbers_are_not_progress(other: Other) -> None:
    tracker = read(other.text(1))
    assert (tracker.progressed, tracker.last_step, tracker.finish) == (False, None, None)


def rows(text: str) -> list[dict[str, object]]:
    reader, lines = RowReader("train.log", SeriesReader()), LineReader("train.log")
    reader.feed(lines.feed(text.encode()) + lines.finish())
    return [dict(zip(COLUMNS, row, strict=True)) for row in reader.finish()]


def test_rows_of_learned_series_have_values() -> None:
    table = rows("".join(f"Epoch {n}: Train loss=0.{n} Val=0.5\n" for n in range(1, 4)))
    assert [(row["epoch"], row["step"], row["loss"]) for row in table] == [
        (1.0, None, 0.1),
        (2.0, None, 0.2),
        (3.0, None, 0.3),
    ]
    table = rows("".join(f"update {n} return {n}.5 entropy 0.3\n" for n in range(1, 4)))
    assert [(row["step"], row["reward"]) for row in table] == [(1, 1.5), (2, 2.5), (3, 3.5)]
    assert rows("".join(f"Epoch {n}/3\nsome accuracy 0.{n}\n" for n in range(1, 4))) == []


def test_column_names_identify_values() -> None:
    table = rows("step,loss,lr\n" + "".join(f"{n},{3 - n / 9:.3f},0.001\n" for n in range(1, 6)))
    assert [(row["step"], row["loss"], row["learning_rate"]) for row in table[:2]] == [
        (2, 2.778, 0.001),
        (3, 2.667, 0.001),
    ]


@pytest.mark.parametrize("separator", [",", "\t"])
def test_rows_with_exponents_and_integers_are_read(separator: str) -> None:
    cells = [
        (10 * n, 500 + n, f"{2 - n / 50:.3f}", f"{n}e-05" if n > 20 else f"0.0{n}") for n in range(1, 41)
    ]
    table = rows(
        separator.join(("step", "tokens", "loss", "lr"))
        + "\n"
        + "".join(separator.join(map(str, row)) + "\n" for row in cells)
    )
    assert [(row["step"], row["loss"], row["learning_rate"]) for row in table[-2:]] == [
        (390, 1.22, 39e-5),
        (400, 1.2, 40e-5),
    ]
    assert len(table) > 35


def test_steps_continue_over_epochs() -> None:
    log = "".join(
        f"Epoch {epoch}/3\n"
        + "".join(f"  batch {n}/90 loss 0.{n}\n" for n in (30, 60, 90))
        + "accuracy 0.9\n"
        for epoch in (1, 2, 3)
    )
    tracker = read(log)
    assert (tracker.attempt, tracker.finish is not None) == (1, True)
    assert read(log.removesuffix("accuracy 0.9\n")).finish is None
    nested = "".join(
        f"[{epoch}/3][{n}/50] D: 0.{n} G loss: 0.{n}\n" for epoch in range(1, 4) for n in (10, 30, 50)
    )
    tracker = read(nested)
    assert (tracker.attempt, tracker.last_step, tracker.finish is not None) == (1, 150, True)
    outer_only = "".join(
        f"[{epoch}, {n:5d}] loss: 0.{n}\n" for epoch in (1, 2) for n in range(1000, 5000, 1000)
    )
    assert (read(outer_only).attempt, read(outer_only).last_step) == (1, 8000)


def test_epochs_are_steps_only_without_a_finer_counter() -> None:
    epochs = [f"Epoch {n}: val acc 0.{n}\n" for n in range(1, 5)]
    assert read("".join(epochs)).last_step == 4
    mixed = "".join(f"step {n}00 loss 0.5\n{line}" for n, line in enumerate(epochs, 1))
    assert (read(mixed).first_step, read(mixed).last_step) == (100, 400)
    late = "".join(epochs) + "step 3 loss 0.5\n"
    assert (read(late).first_step, read(late).last_step) == (3, 3)


@pytest.mark.parametrize(
    "setting",
    ["# train.train_iter={}", "train.train_iter={}", "  trainer.max.step = {}", "eval_period_iterations: {}"],
)
def test_settings_are_not_steps(setting: str) -> None:
    metrics = "lr 0.01, dropout 0.1\nloss weight 0.25\n"
    settings = "".join(f"{setting.format(n)}\n{metrics}" for n in (100, 200, 300))
    assert not read(settings).progressed
    assert read("".join(f"iter: {n}\n{metrics}" for n in (100, 200, 300))).last_step == 300


STEPS = "".join(f"step {n} loss 0.5\n" for n in range(1, 9))


@pytest.mark.parametrize(
    "said",
    [
        "Training done, model saved to policy.pt",
        "Done.",
        "2026-03-01 10:00:00 | INFO | finished in 12.5 s",
        "Total training time: 0:12:01",
        "Training  Total time: 0:12:01 (1.203440 s / it)",
        "Best epoch: 12 (0.81)",
        "Early stopping at epoch 12",
        "Saved final model to out/final.pt",
        "Results saved to runs/7",
        "训练结束",
        "Entrenamiento finalizado",
    ],
)
def test_final_messages_are_recognized(said: str) -> None:
    tracker = read(STEPS + said + "\n")
    assert tracker.finish == Finish("likely", "train.log", 9, said)
    assert tracker.finished
    assert not tracker.surely_finished
    assert read(said + "\n").finish is None  # nothing was trained
    assert read(STEPS + said + "\n" + "step 9 loss 0.5\n").finish is None
    between = "".join(f"step {n} loss 0.5\n{said}\n" for n in range(1, 9))
    assert read(between).finish is None  # it says so after each step


@pytest.mark.parametrize(
    "said",
    [
        "Epoch 3 training finished in 12 s",
        "Saving the checkpoint is done",
        "EarlyStopping counter: 3 out of 10",
        "New best model: 0.81, saving it",
        "Therefore, the final truth values would be:",
        "Training will be finished once the target is reached",
        "eta of the total time: 3 h",
        "I20240724 11:19:11 3968960 helpers.py:132]  Total time: 1 day, 0:12:01 (3.834883 s / it)",
    ],
)
def test_messages_during_a_run_are_not_an_end(said: str) -> None:
    assert read(STEPS + said + "\n").finish is None


def test_zero_based_count_ends_one_before_its_total() -> None:
    def counted(first: int, last: int) -> str:
        return "".join(f"step {n}/30 loss 0.5\n" for n in range(first, last + 1))

    assert read(counted(0, 29)).surely_finished
    assert not read(counted(1, 29)).finished
    assert not read(counted(0, 28)).finished


def epochs(heading: str, row: str, count: int) -> str:
    """Epochs of 100 batches, of which every tenth is printed."""
    rows = "".join(row.format(n=n, loss=f"0.{n}") + "\n" for n in range(10, 101, 10))
    return "".join(heading.format(n=n) + "\n" + rows for n in range(1, count + 1))


@pytest.mark.parametrize(
    "row", ["{n}/100 - loss {loss}", "batch {n}/100 loss {loss}", "step {n}/100 loss {loss}"]
)
@pytest.mark.parametrize(
    "heading", ["Epoch {n}/10", "Epoch {n} of 10", "Starting epoch {n}", "=== Epoch {n} ==="]
)
def test_total_of_an_epoch_is_not_that_of_the_run(heading: str, row: str) -> None:
    for count in (1, 3):
        tracker = read(epochs(heading, row, count))
        assert (tracker.last_step, tracker.total_steps, tracker.finish) == (100 * count, None, None)
    if "10" in heading and "batch" not in row:
        assert read(epochs(heading, row, 10)).finish is not None


def test_counter_after_a_heading_has_its_own_total() -> None:
    log = "".join(
        f"Epoch {n // 10}\nstep {n}/40 loss 0.{n}\nstep {n + 5}/40 loss 0.{n}\n" for n in (10, 20, 30)
    )
    assert (read(log).total_steps, read(log).finish) == (40, None)
    assert read(log + "step 40/40 loss 0.1\n").finish is not None


OF_TOTAL = "".join(f"step {n}/200 loss 0.5\n" for n in range(10, 101, 10))


@pytest.mark.parametrize(
    "said",
    ["Total time: 3.2s", "Best epoch: 3", "Training took 12.3 seconds", "Finished training epoch 3", "Done."],
)
def test_messages_do_not_end_a_run_before_its_total(said: str) -> None:
    assert read(f"{OF_TOTAL}{said}\n").finish is None


@pytest.mark.parametrize("said", ["Early stopping at step 100", "训练完成"])
def test_early_stopping_ends_a_run_before_its_total(said: str) -> None:
    assert read(f"{OF_TOTAL}{said}\n").finish is not None


def test_finished_save_is_not_the_end() -> None:
    assert read(STEPS + "saving checkpoint to out\ndone\n").finish is None
    assert read(STEPS + "Finished training epoch 3\n").finish is None


NO_TRAINING = {
    "rows": lambda n: f"{n},{100 - n / 2:.4f},{n / 4:.4f}",
    "two columns": lambda n: f"{n}  {3 / (n + 1):.4f}",
    "scores of a game": lambda n: f"Round {n}: player A score {3 * n} player B score {2 * n}",
    "frames": lambda n: f"Frame {n}: PSNR {30 + 1 / n:.3f} SSIM 0.{90 + n % 10}",
    "an evaluation": lambda n: f"[{n}/500] eval sample loss 0.{n % 10}5 acc 0.{n % 7}",
}


@pytest.mark.parametrize("name", NO_TRAINING)
def test_numbers_without_training_words_are_ignored(name: str) -> None:
    log = "".join(NO_TRAINING[name](n) + "\n" for n in range(1, 60))
    assert not read(log).trained
    if name in ("rows", "two columns"):
        assert read("Training on 2 cards\n" + log).trained


def test_memory_for_rare_templates_is_bounded() -> None:
    reader, letters = SeriesReader(), "ghijklmnopqrstuvwxyz"
    for n in range(3000):
        word = "".join(letters[n // 20**place % 20] for place in range(4))
        reader.read(Line(f"step 0.5 {word} loss 0.25 w {n}", "train.log", n, None, None))
    (stream,) = reader._sources["train.log"].values()
    assert len(stream.kinds) <= 256
    assert len(stream.none) + len(stream.once) <= 2048


LOADED = "Found cached dataset json (/c/datasets/json/default-5a1b/0.0.0/2a3b)\n"
BAR = "  0%|          | 0/{0} [00:00<?, ?it/s]\r{1}%|#####     | 2/{0} [00:{2:02}<00:09, 300.00it/s]\n"


@pytest.mark.parametrize(
    ("text", "last", "ended"),
    [
        (LOADED + BAR.format(2, 100, 0) + "step 1 loss 2.0\n", 1, False),
        (LOADED * 2 + BAR.format(2, 100, 0) * 4 + "step 1 loss 2.0\n", 1, False),
        (f"INFO:datasets.builder:{LOADED}" + BAR.format(3, 67, 0), None, False),
        # Bars of a training: longer, slower, further down, or without the message.
        (LOADED + BAR.format(100, 2, 0), 2, False),
        (LOADED + BAR.format(2, 100, 30), 2, True),
        (LOADED + "words\n" * 3 + BAR.format(2, 100, 0), 2, True),
        (LOADED.replace("Found cached", "Read the") + BAR.format(2, 100, 0), 2, True),
    ],
)
def test_bar_of_a_loaded_dataset_is_not_progress(text: str, last: int | None, ended: bool) -> None:
    tracker = read(text)
    assert (tracker.last_step, tracker.finish is not None) == (last, ended)


@pytest.mark.parametrize(
    ("text", "last"),
    [
        ("x - INFO - Configuration: {'num_iterations': 5, 'group': 2, 'validation_interval': 10}\n", None),
        ("x - INFO - hyper_params: {'num_iterations': 5, 'validation_interval': 10}\n", None),
        ("x - INFO - Result: {'num_iterations': 5, 'reward': 0.5}\n", 5),
    ],
)
def test_keys_of_a_printed_configuration_are_not_counters(text: str, last: int | None) -> None:
    assert read(text).last_step == last
