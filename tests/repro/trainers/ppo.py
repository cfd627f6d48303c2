"""TRL's PPO trainer under ZeRO-3 saves checkpoints of the policy inside the engine, not of the engine.

It is called PPOv2Trainer in TRL 0.11 and PPOTrainer since 0.12; the newest TRL has removed it.
"""

import argparse

import setting
from datasets import Dataset
from packaging.version import Version

if Version("0.12") > setting.TRL:
    from trl import PPOv2Config as PPOConfig
    from trl import PPOv2Trainer as PPOTrainer
else:
    from trl import PPOConfig, PPOTrainer

parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
parser.add_argument("--episodes", type=int, default=16)
options = parser.parse_args()

setting.start()
words = setting.language()
prompts = Dataset.from_dict({"input_ids": [words.tokenizer(setting.PROMPT)["input_ids"]] * 32})
setting.tell_accelerate(setting.config(stage3_gather_16bit_weights_on_model_save=True))
arguments = setting.arguments(
    PPOConfig,
    None,  # the trainer reads accelerate's setting, not its arguments
    -1,
    bf16=True,
    save_strategy="steps",
    save_steps=1,
    total_episodes=options.episodes,
    num_mini_batches=1,
    num_ppo_epochs=1,
    response_length=6,
    local_rollout_forward_batch_size=4,
    num_sample_generations=0,
    missing_eos_penalty=1.0,
    learning_rate=1e-5,
)
roles = {
    "policy": setting.policy(words),
    "ref_policy": setting.policy(words),
    "reward_model": setting.scorer(words),
    "value_model": setting.scorer(words),
    "train_dataset": prompts,
    "eval_dataset": prompts.select(range(4)),
}
# Names that changed in 0.12 and 0.13.
roles["config" if Version("0.13") > setting.TRL else "args"] = arguments
roles["tokenizer" if Version("0.12") > setting.TRL else "processing_class"] = words.tokenizer
if Version("0.13") <= setting.TRL:
    roles["model"], roles["ref_model"] = roles.pop("policy"), roles.pop("ref_policy")
trainer = PPOTrainer(**roles)
trainer.train()
setting.finish()
