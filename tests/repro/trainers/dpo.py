"""TRL's DPO trainer under ZeRO-3, with its reference model."""

import argparse

import setting
from datasets import Dataset
from trl import DPOConfig, DPOTrainer

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--steps", type=int, default=8)
options = parser.parse_args()

setting.start()
words = setting.language()
pairs = {"prompt": [setting.PROMPT], "chosen": [setting.GOOD], "rejected": [setting.BAD]}
trainer = DPOTrainer(
    model=setting.policy(words),
    ref_model=setting.policy(words),
    args=setting.arguments(DPOConfig, setting.config(), options.steps),
    train_dataset=Dataset.from_dict({name: each * 64 for name, each in pairs.items()}),
    processing_class=words.tokenizer,
)
trainer.train()
setting.finish()
