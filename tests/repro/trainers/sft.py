"""TRL's SFT trainer under ZeRO-3. ``--save`` saves at the end without gathering the weights."""

import argparse

import setting
from datasets import Dataset
from trl import SFTConfig, SFTTrainer

parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
parser.add_argument("--steps", type=int, default=8)
parser.add_argument("--save", action="store_true")
options = parser.parse_args()

setting.start()
words = setting.language()
trainer = SFTTrainer(
    model=setting.policy(words),
    args=setting.arguments(SFTConfig, setting.config(), options.steps),
    train_dataset=Dataset.from_dict({"text": [setting.PROMPT + setting.GOOD] * 64}),
    processing_class=words.tokenizer,
)
trainer.train()
if options.save:
    trainer.save_model()
setting.finish()
