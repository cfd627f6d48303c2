"""Shared parts of the programs with real trainers: DeepSpeed by accelerate on the CPU, a tiny language model.

The programs run with TRL from 0.11 to the newest, so they detect differences between its versions.
"""

from __future__ import annotations

import builtins
import dataclasses
import importlib.metadata
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import tiny  # noqa: I001 - comes first: it prepares the environment for DeepSpeed on the CPU
import torch
from accelerate.state import PartialState
from accelerate.utils import DistributedType
from packaging.version import Version
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, PreTrainedTokenizerFast
from transformers import Qwen2Config

TRL = Version(importlib.metadata.version("trl"))
PROMPT, GOOD, BAD = "count from one to three", " one two three", " three one one"
_PEOPLE = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
_REPLY = "{% if add_generation_prompt %}assistant: {% endif %}"


class Language(NamedTuple):
    """Folders with random weights, and their tokenizer."""

    policy: str
    reward: str
    tokenizer: Any


def start(timeout: float = 60.0) -> int:
    """Join the process group and let accelerate use DeepSpeed on it, although there is no accelerator."""
    rank = tiny.start(timeout)
    # Without an accelerator, accelerate finds no backend (1.13 and later: one process), and `use_cpu`
    # switches DeepSpeed off: accelerate/state.py, PartialState.
    PartialState._prepare_backend = lambda *_, **__: ("gloo", DistributedType.MULTI_CPU)
    # DeepSpeed before 0.17 drops an empty parameter group that torch 2.9 and later still count in
    # torch/optim/lr_scheduler.py: zip(strict=True) raises a ValueError there.
    torch.optim.lr_scheduler.zip = lambda *each, **_: builtins.zip(*each, strict=False)  # type: ignore[attr-defined]
    if rank == 0:
        names = ("transformers", "accelerate", "trl")
        print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in names))
    return rank


def language() -> Language:
    """Write a byte tokenizer, and a policy and a reward model of two layers; return the folders."""
    folder = shared_folder("language-")
    alphabet = ["<pad>", "<s>", "</s>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    tokens = Tokenizer(models.BPE({token: number for number, token in enumerate(alphabet)}, []))
    tokens.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokens.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=tokens,
        pad_token="<pad>",
        bos_token="<s>",
        eos_token="</s>",
        padding_side="left",
        model_input_names=["input_ids", "attention_mask"],
    )
    tokenizer.chat_template = _PEOPLE + _REPLY
    tokenizer.model_max_length = 128
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        num_labels=1,
    )
    torch.manual_seed(0)
    if torch.distributed.get_rank() == 0:  # transformers 5 writes on this rank only
        for name, kind in (("policy", AutoModelForCausalLM), ("reward", AutoModelForSequenceClassification)):
            kind.from_config(config).save_pretrained(folder / name)
            tokenizer.save_pretrained(folder / name)
    torch.distributed.barrier()
    return Language(str(folder / "policy"), str(folder / "reward"), tokenizer)


def shared_folder(prefix: str) -> Path:
    """Return a new temporary folder, the same on all ranks."""
    messages = [tempfile.mkdtemp(prefix=prefix) if torch.distributed.get_rank() == 0 else None]
    torch.distributed.broadcast_object_list(messages)
    return Path(str(messages[0]))


def policy(words: Language) -> Any:
    """Return the model to train."""
    return AutoModelForCausalLM.from_pretrained(words.policy)


def scorer(words: Language) -> Any:
    """Return the model that scores answers."""
    return AutoModelForSequenceClassification.from_pretrained(words.reward, num_labels=1)


def config(stage: int = 3, **zero: Any) -> dict[str, Any]:
    """Return a DeepSpeed configuration that the trainer completes."""
    settings = tiny.config(stage3_prefetch_bucket_size=0, **zero)
    if stage < 3:
        settings["zero_optimization"] = {"stage": stage, "overlap_comm": False, **zero}
    del settings["optimizer"]
    settings |= {
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": "auto",
        "gradient_clipping": "auto",
        "bf16": {"enabled": "auto"},
    }
    return settings


def tell_accelerate(settings: dict[str, Any]) -> None:
    """Set DeepSpeed's configuration in the environment, as `accelerate launch` does."""
    path = shared_folder("config-") / "zero.json"
    if torch.distributed.get_rank() == 0:
        path.write_text(json.dumps(settings))
    torch.distributed.barrier()
    os.environ |= {"ACCELERATE_USE_DEEPSPEED": "true", "ACCELERATE_DEEPSPEED_CONFIG_FILE": str(path)}


def arguments(kind: Any, deepspeed: dict[str, Any] | None, steps: int, **more: Any) -> Any:
    """Return the trainer's arguments, without those that this version does not have."""
    wanted = {
        "output_dir": str(shared_folder("output-")),
        "per_device_train_batch_size": 2,
        "max_steps": steps,
        "logging_steps": 1,
        "learning_rate": 1e-3,
        "save_strategy": "no",
        "report_to": [],
        "bf16": False,
        "deepspeed": deepspeed,
        **more,
    }
    known = {field.name for field in dataclasses.fields(kind)}
    return kind(**{name: value for name, value in wanted.items() if name in known})


def finish() -> None:
    """Leave the process group in order, then exit at once.

    When the interpreter exits after all work, leftovers of trainers sometimes abort the process ("terminate
    called without an active exception").
    """
    tiny.finish()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
