"""Programs that train a tiny language model with TRL's trainers."""

from __future__ import annotations

import os
import time
from typing import Any

import torch
from common import HOUR, SEED, about, event, run
from datasets import Dataset
from language import BAD, GOOD, PROMPT, Pace, model, tokenizer
from trl import DPOConfig, DPOTrainer, GRPOConfig, GRPOTrainer, SFTConfig, SFTTrainer

PACE = Pace()
COMMON = {
    "output_dir": "out",
    "per_device_train_batch_size": 2,
    "logging_steps": 1,
    "report_to": [],
    "save_strategy": "no",
    "use_cpu": True,
    "bf16": False,
    "gradient_checkpointing": False,
    "seed": SEED,
}
PAIRS = {"prompt": [PROMPT] * 1000, "chosen": [GOOD] * 1000, "rejected": [BAD] * 1000}


def sft(steps: int, evaluated: int = 8, **arguments: Any) -> SFTTrainer:
    words = tokenizer()
    texts = Dataset.from_dict({"text": [PROMPT + GOOD] * 1000})
    return SFTTrainer(
        model=model(words, PACE),
        args=SFTConfig(max_steps=steps, per_device_eval_batch_size=2, **{**COMMON, **arguments}),
        train_dataset=texts,
        eval_dataset=texts.select(range(evaluated)),
        processing_class=words,
    )


def sft_steady() -> None:
    sft(250).train()


def sft_long_evaluation() -> None:
    trl_trainer = sft(100, 80, eval_strategy="steps", eval_steps=60)
    PACE.evaluating = about(80, 0.5) / 40
    trl_trainer.train()


def dpo(steps: int, **arguments: Any) -> DPOTrainer:
    words = tokenizer()
    return DPOTrainer(
        model=model(words, PACE),
        ref_model=model(words, Pace()),
        args=DPOConfig(max_steps=steps, **{**COMMON, **arguments}),
        train_dataset=Dataset.from_dict(PAIRS),
        processing_class=words,
    )


def dpo_steady() -> None:
    dpo(120).train()


def grpo(steps: int, reward: Any, **arguments: Any) -> GRPOTrainer:
    words = tokenizer()
    PACE.training = PACE.evaluating = 0.02  # seconds for one token
    return GRPOTrainer(
        model=model(words, PACE),
        reward_funcs=reward,
        args=GRPOConfig(
            max_steps=steps,
            num_generations=2,
            max_completion_length=8,
            gradient_accumulation_steps=1,
            **{**COMMON, **arguments},
        ),
        train_dataset=Dataset.from_dict({"prompt": [PROMPT] * 1000}),
        processing_class=words,
    )


def zeros(completions: list[str], **_: Any) -> list[float]:
    """Return a reward of zero for every completion."""
    return [0.0] * len(completions)


def grpo_zero_loss() -> None:
    grpo(150, zeros).train()


class Growing:
    """A reward function that takes longer with each call, as if the rollouts became longer."""

    __name__ = "growing"

    def __init__(self) -> None:
        self._calls = 0

    def __call__(self, completions: list[str], **_: Any) -> list[float]:
        self._calls += 1
        time.sleep(min(0.5 * 1.06**self._calls, 15))
        return [float(len(set(each))) for each in completions]


def grpo_growing_rollouts() -> None:
    grpo(50, Growing()).train()


# ---------------------------------------------------------------- what fails


def score_answers(completions: list[str], **_: Any) -> list[float]:
    """Return rewards, but wait for an hour after 60 calls, as if a reward service did not respond."""
    score_answers.calls += 1  # type: ignore[attr-defined]
    if score_answers.calls > 60 and os.environ.get("RANK", "0") == os.environ.get("ODD", "0"):  # type: ignore[attr-defined]
        event("reward")
        time.sleep(HOUR)
    return [float(len(set(each))) for each in completions]


score_answers.calls = 0  # type: ignore[attr-defined]


def grpo_reward_hangs() -> None:
    grpo(500, score_answers).train()


def grpo_reward_hangs_on_rank_1() -> None:
    os.environ["ODD"] = "1"
    grpo(500, score_answers).train()


def sft_collator_hangs() -> None:
    """Block in the collator, which runs in the main process without loader workers."""
    trl_trainer = sft(500)
    collate, calls = trl_trainer.data_collator, 0

    def collate_with_images(samples: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 80:
            event("collator")
            time.sleep(HOUR)
        return collate(samples)

    trl_trainer.data_collator = collate_with_images
    trl_trainer.train()


def dpo_out_of_memory() -> None:
    trl_trainer = dpo(500)
    step, calls = trl_trainer.training_step, 0

    def training_step(*positional: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 60:
            event("oom")
            raise torch.cuda.OutOfMemoryError(
                "CUDA out of memory. Tried to allocate 1.50 GiB. GPU 0 has a total capacity of 39.39 GiB of"
                " which 913.06 MiB is free. Process 4711 has 38.49 GiB memory in use."
            )
        return step(*positional, **named)

    trl_trainer.training_step = training_step
    trl_trainer.train()


if __name__ == "__main__":
    run(globals())
