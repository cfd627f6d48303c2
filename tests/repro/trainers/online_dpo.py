"""TRL's Online DPO trainer with an adapter: the policy without the adapter is the reference.

TRL before 0.13 passes the missing reference model to ``deepspeed.initialize``.
"""

import argparse

import setting
from datasets import Dataset
from packaging.version import Version
from peft import LoraConfig

try:
    from trl.experimental.online_dpo import OnlineDPOConfig, OnlineDPOTrainer
except ImportError:  # TRL before 0.24
    from trl import OnlineDPOConfig, OnlineDPOTrainer

parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
parser.add_argument("--steps", type=int, default=6)
parser.add_argument("--stage", type=int, default=2, help="of ZeRO (default: %(default)s)")
options = parser.parse_args()

setting.start()
words = setting.language()
if Version("0.22") > setting.TRL:  # the names of its arguments changed in this version
    scoring = {"reward_model": setting.scorer(words), "reward_processing_class": words.tokenizer}
else:
    scoring = {"reward_funcs": setting.scorer(words), "reward_processing_classes": words.tokenizer}
trainer = OnlineDPOTrainer(
    model=setting.policy(words),
    args=setting.arguments(OnlineDPOConfig, setting.config(options.stage), options.steps, max_new_tokens=8),
    train_dataset=Dataset.from_dict({"prompt": [[{"role": "user", "content": setting.PROMPT}]] * 64}),
    processing_class=words.tokenizer,
    peft_config=LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM"),
    **scoring,
)
trainer.train()
setting.finish()
