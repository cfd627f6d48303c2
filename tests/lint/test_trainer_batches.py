"""Trainers without data for the evaluation, and GRPO batches that are not a multiple of the group size."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from stallwatch_lint.check_run import check_run
from stallwatch_lint.script import Script, parse_script

HEAD = "from transformers import Trainer, TrainingArguments\n"
MADE = "args = TrainingArguments(output_dir='o', eval_strategy='steps')\n"
TRL = "from trl import GRPOConfig\n"


def found(text: str, versions: Mapping[str, str] | None = None, ranks: int | None = None) -> list[str]:
    script = parse_script(text, "train.py")
    assert isinstance(script, Script)
    diagnostics = check_run(None, [script], versions, world_size=ranks)
    return [f"{diagnostic.severity} {diagnostic.check} {diagnostic.line}" for diagnostic in diagnostics]


@pytest.mark.parametrize(
    "text",
    [
        MADE + "t = Trainer(model=m, args=args, train_dataset=ds)",
        MADE + "t = Trainer(m, args, None, ds, None)",
        "\nTrainer(m, TrainingArguments('o', eval_strategy='epoch'))",
        MADE.replace("eval_s", "evaluation_s") + "Trainer(m, args, eval_dataset=None)",
    ],
)
def test_evaluation_without_a_dataset_is_reported(text: str) -> None:
    assert found(HEAD + text) == ["fails eval-dataset-missing 3"]


@pytest.mark.parametrize(
    "text",
    [
        MADE + "Trainer(model=m, args=args, eval_dataset=data)",
        MADE + "Trainer(m, args, None, ds, test)",
        MADE + "Trainer(model=m, args=args, **more)",
        MADE + "args.eval_strategy = 'no'\nTrainer(model=m, args=args)",
        MADE + "args = other()\nTrainer(model=m, args=args)",
        MADE + "def make(args):\n    return Trainer(model=m, args=args)",
        MADE + "class Trainer: ...\nTrainer(model=m, args=args)",
        MADE.replace("'steps'", "'no'") + "Trainer(model=m, args=args)",
        MADE.replace("'steps'", "strategy") + "Trainer(model=m, args=args)",
        "args = TrainingArguments(output_dir='o', eval_steps=5)\nTrainer(model=m, args=args)",
        "args = TrainingArguments(eval_strategy='steps', **more)\nTrainer(model=m, args=args)",
    ],
)
def test_possible_dataset_is_not_reported_as_missing(text: str) -> None:
    assert found(HEAD + text) == []


@pytest.mark.parametrize(
    ("sizes", "ranks", "expected"),
    [
        ("per_device_train_batch_size=2, gradient_accumulation_steps=1, num_generations=6", 1, True),
        ("per_device_train_batch_size=2, num_generations=6", 1, True),
        ("per_device_train_batch_size=2, num_generations=6", 3, False),
        ("per_device_train_batch_size=2, gradient_accumulation_steps=3, num_generations=6", 1, False),
        ("per_device_train_batch_size=2, steps_per_generation=3, num_generations=6", 1, False),
        ("per_device_train_batch_size=2, steps_per_generation=2, num_generations=6", 1, True),
        ("per_device_train_batch_size=2, num_generations=6", None, False),
        ("num_generations=6", 1, False),
        ("per_device_train_batch_size=2, num_generations=n", 1, False),
        ("per_device_train_batch_size=2, num_generations=6, generation_batch_size=12", 1, False),
        ("per_device_train_batch_size=2, num_generations=6, **more", 1, False),
        ("per_device_train_batch_size=2, num_generations=1", None, True),
    ],
)
def test_generation_batch_must_be_a_multiple_of_the_group_size(
    sizes: str, ranks: int | None, expected: bool
) -> None:
    text = f"{TRL}args = GRPOConfig({sizes})"
    assert found(text, {"trl": "1.16.0"}, ranks) == ["fails batch-not-in-groups 2"] * expected
    assert found(text, {}, ranks) == ["likely batch-not-in-groups 2"] * expected
    assert found(text + "\nargs.num_generations = 2", {"trl": "1.16.0"}, ranks) == []
