"""Run a trainer that fails or finishes: ``python trainers.py SCENARIO``.

The trainers are Hugging Face's Trainer, Lightning, Accelerate, TRL, and DeepSpeed, with tiny models on the
CPU. The programs in faults.py use plain loops instead.
"""

from __future__ import annotations

import os
import random
import sys
from typing import Any

import torch
from faults import CHANCE, RANK, SEED, TOTAL, net, say, train
from torch.utils.data import DataLoader, Dataset


class Numbers(Dataset[Any]):
    def __init__(self, labels: bool = True, size: int = 400) -> None:
        self.labels, self.size = labels, size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        ids = (torch.arange(12) + index) % 60
        return {"input_ids": ids} | ({"labels": ids.clone()} if self.labels else {})


def hf(data: Any = None, metrics: Any = None, **arguments: Any) -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

    model = GPT2LMHeadModel(GPT2Config(n_layer=1, n_head=2, n_embd=16, vocab_size=64, n_positions=32))
    settings = {"output_dir": "out", "max_steps": 40, "logging_steps": 2, "report_to": [], "use_cpu": True}
    settings |= {"per_device_train_batch_size": 4, "save_strategy": "no", "disable_tqdm": SEED % 2 == 0}
    return Trainer(
        model=model,
        args=TrainingArguments(**(settings | arguments)),
        train_dataset=Numbers() if data is None else data,
        eval_dataset=(arguments.get("eval_strategy") and metrics is not None and Numbers(size=8)) or None,
        compute_metrics=metrics,
    )


def hf_without_labels() -> None:
    hf(Numbers(labels=False)).train()


def hf_without_eval_data() -> None:
    hf(eval_strategy="steps").train()


def hf_metric_key() -> None:
    hf(metrics=lambda found: {"accuracy": found["accuracy"]}, eval_strategy="steps", eval_steps=10).train()


def hf_best_model_key() -> None:
    hf(
        metrics=lambda _: {"bleu": 1.0},
        eval_strategy="steps",
        eval_steps=10,
        save_strategy="steps",
        save_steps=10,
        load_best_model_at_end=True,
        metric_for_best_model="rouge",
    ).train()


def hf_resume_nothing() -> None:
    hf().train(resume_from_checkpoint=True)


def hf_strategies_differ() -> None:
    hf(eval_strategy="steps", save_strategy="epoch", load_best_model_at_end=True)


def hf_bf16_flags() -> None:
    hf(bf16=True, fp16=True)


def hf_fine() -> None:
    hf(max_steps=60).train()


def hf_fine_with_evaluation() -> None:
    hf(
        metrics=lambda _: {"bleu": 1.0},
        eval_strategy="steps",
        eval_steps=10,
        save_strategy="steps",
        save_steps=20,
    ).train()


def light(what: str = "", **arguments: Any) -> None:
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = net()

        def training_step(self, batch: torch.Tensor, number: int) -> Any:
            if what == "raise" and number == 20:
                raise RuntimeError("augmentation produced an empty crop")
            if what == "float" and number == 20:
                return "0.3"
            loss = self.net(batch).square().mean()
            self.log("train_loss", loss, prog_bar=True)
            return loss

        def validation_step(self, batch: torch.Tensor, number: int) -> None:
            self.log("val_loss", self.net(batch).square().mean())

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters())

    callbacks = []
    if what == "monitor":
        callbacks = [lightning.pytorch.callbacks.EarlyStopping("val_accuracy")]
    data = DataLoader(torch.randn(320, 16), 8)
    trainer = lightning.Trainer(
        max_epochs=2,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        callbacks=callbacks,
        **arguments,
    )
    trainer.fit(Module(), data, data)


def lightning_raises() -> None:
    light("raise")


def lightning_returns_text() -> None:
    light("float")


def lightning_monitors_nothing() -> None:
    light("monitor")


def lightning_wants_a_gpu() -> None:
    import lightning

    lightning.Trainer(accelerator="gpu", devices=2)


def lightning_fine() -> None:
    light()


def accelerate_uneven() -> None:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    model, _ = accelerator.prepare(net(), torch.optim.AdamW(net().parameters()))
    train(model=model)
    raise ValueError(f"rank {accelerator.process_index}: reference answer is longer than max_length=512")


def trl_setting(name: str, rows: dict[str, list[Any]], **arguments: Any) -> Any:
    import trl
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

    words = {word: number for number, word in enumerate(["<pad>", "</s>", "<unk>", "a", "b", "c", "d"])}
    base = Tokenizer(models.WordLevel(words, "<unk>"))
    base.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=base, pad_token="<pad>", eos_token="</s>", unk_token="<unk>"
    )
    model = GPT2LMHeadModel(GPT2Config(n_layer=1, n_head=2, n_embd=16, vocab_size=8, n_positions=64))
    from datasets import Dataset as Rows

    settings = {
        "output_dir": "out",
        "max_steps": 10,
        "logging_steps": 1,
        "report_to": [],
        "use_cpu": True,
        "bf16": False,
    }
    settings |= {"per_device_train_batch_size": 4, "save_strategy": "no"}
    extra = {"reward_funcs": arguments.pop("reward")} if name == "GRPO" else {}
    return getattr(trl, f"{name}Trainer")(
        model=model,
        args=getattr(trl, f"{name}Config")(**(settings | arguments)),
        train_dataset=Rows.from_dict(rows),
        processing_class=tokenizer,
        **extra,
    )


def trl_dpo_columns() -> None:
    trl_setting("DPO", {"prompt": ["a b"] * 40, "answer": ["c d"] * 40}).train()


def trl_sft_columns() -> None:
    trl_setting("SFT", {"document": ["a b c"] * 40}).train()


def trl_grpo_generations() -> None:
    trl_setting(
        "GRPO", {"prompt": ["a b"] * 40}, reward=lambda completions, **_: [0.0], num_generations=3
    ).train()


def trl_grpo_reward_length() -> None:
    trl_setting(
        "GRPO",
        {"prompt": ["a b"] * 40},
        reward=lambda completions, **_: [1.0],
        num_generations=4,
        max_completion_length=4,
    ).train()


def trl_grpo_reward_raises() -> None:
    def reward(completions: list[str], **_: Any) -> list[float]:
        return [float(completion.split("answer:")[1]) for completion in completions]

    trl_setting(
        "GRPO", {"prompt": ["a b"] * 40}, reward=reward, num_generations=4, max_completion_length=4
    ).train()


def trl_sft_fine() -> None:
    trl_setting("SFT", {"text": ["a b c d"] * 80}, max_steps=20).train()


def trl_grpo_fine() -> None:
    chance = random.Random(SEED)
    trl_setting(
        "GRPO",
        {"prompt": ["a b"] * 80},
        reward=lambda completions, **_: [chance.random() for _ in completions],
        num_generations=4,
        max_completion_length=4,
    ).train()


def deepspeed_setting(settings: dict[str, Any]) -> Any:
    os.environ["DS_ACCELERATOR"] = "cpu"
    import deepspeed

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.init_distributed(dist_backend="gloo")
    model = net()
    base = {
        "train_micro_batch_size_per_gpu": 8,
        "optimizer": {"type": "AdamW", "params": {"torch_adam": True}},
    }
    return deepspeed.initialize(model=model, model_parameters=model.parameters(), config=base | settings)[0]


def deepspeed_steps(engine: Any, steps: int) -> None:
    for step in range(1, steps + 1):
        loss = engine(torch.randn(8, 16)).square().mean()
        engine.backward(loss)
        engine.step()
        say(step, loss.item(), TOTAL)


def deepspeed_unknown_optimizer() -> None:
    deepspeed_setting({"optimizer": {"type": "SuperAdam", "params": {}}})


def deepspeed_unknown_key() -> None:
    deepspeed_setting({"zero_optimization": {"stage": 2, "allgather_bucket": 5}})


def deepspeed_rank_raises() -> None:
    engine = deepspeed_setting({"zero_optimization": {"stage": 2}})
    deepspeed_steps(engine, 20)
    if RANK == 1:
        raise ValueError("prompt has 0 tokens after truncation")
    deepspeed_steps(engine, 400)


def deepspeed_load_nothing() -> None:
    engine = deepspeed_setting({"zero_optimization": {"stage": 1}})
    deepspeed_steps(engine, 10)
    path, _ = engine.load_checkpoint("checkpoints/global_step900")
    assert path is not None, "checkpoint could not be loaded"


def deepspeed_fine() -> None:
    engine = deepspeed_setting({"zero_optimization": {"stage": CHANCE.choice([1, 2, 3])}})
    deepspeed_steps(engine, 40)


if __name__ == "__main__":
    globals()[sys.argv[1]]()
