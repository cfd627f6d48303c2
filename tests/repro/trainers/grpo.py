"""TRL's GRPO trainer under ZeRO-3: healthy, or with a faulty reward function.

--reward counts   score by the answer (default) --reward eval     leave the policy in evaluation mode, as
scoring with it does --reward stuck    on rank 1, never return from the fifth call; only from then on
`--timeout` holds --reward raises   raise at the fifth call
"""

import argparse
import threading
from datetime import timedelta

import setting
import torch
from datasets import Dataset
from torch.distributed.distributed_c10d import _set_pg_timeout
from trl import GRPOConfig, GRPOTrainer

parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
parser.add_argument("--steps", type=int, default=8)
parser.add_argument("--reward", choices=("counts", "eval", "stuck", "raises"), default="counts")
parser.add_argument("--timeout", type=float, default=5.0, help="seconds until gloo gives up the stuck rank")
options = parser.parse_args()

rank = setting.start()
words = setting.language()
calls = 0


def reward(completions: list[str], **_: object) -> list[float]:
    """Return the number of different letters."""
    global calls
    calls += 1
    if options.reward == "eval" and calls >= 5:
        trainer.model.eval()
    if options.reward == "stuck" and calls == 5:
        torch.distributed.barrier()  # a busy machine may be slow up to here
        _set_pg_timeout(timedelta(seconds=options.timeout))
        if rank == 1:
            threading.Event().wait()  # a reward service that does not answer
    if options.reward == "raises" and calls == 5:
        raise LookupError("the reward table has no entry for this answer")
    return [float(len(set(each))) for each in completions]


trainer = GRPOTrainer(
    model=setting.policy(words),
    reward_funcs=reward,
    args=setting.arguments(
        GRPOConfig,
        setting.config(),
        options.steps,
        num_generations=2,
        max_prompt_length=32,
        max_completion_length=8,
        gradient_accumulation_steps=1,
    ),
    train_dataset=Dataset.from_dict({"prompt": [setting.PROMPT] * 64}),
    processing_class=words.tokenizer,
)
trainer.train()
setting.finish()
