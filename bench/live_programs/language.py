"""A byte-level tokenizer, and a tiny language model with random weights. No download is needed."""

from __future__ import annotations

import time
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

torch.set_num_threads(1)
PROMPT, GOOD, BAD = "count from one to three", " one two three", " three one one"
_CHAT = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"


def tokenizer() -> Any:
    alphabet = ["<pad>", "<s>", "</s>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    tokens = Tokenizer(models.BPE({token: number for number, token in enumerate(alphabet)}, []))
    tokens.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokens.decoder = decoders.ByteLevel()
    made = PreTrainedTokenizerFast(
        tokenizer_object=tokens,
        pad_token="<pad>",
        bos_token="<s>",
        eos_token="</s>",
        padding_side="left",
        model_input_names=["input_ids", "attention_mask"],
    )
    made.chat_template = _CHAT + "{% if add_generation_prompt %}assistant: {% endif %}"
    made.model_max_length = 128
    return made


class Pace:
    """The duration of a forward pass, in seconds."""

    def __init__(self) -> None:
        self.training, self.evaluating = 0.25, 0.25

    def __call__(self, network: Any, _: Any) -> None:
        time.sleep(self.training if network.training else self.evaluating)


def model(words: Any, pace: Pace) -> Any:
    torch.manual_seed(0)
    made = Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=len(words),
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=1,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=256,
            pad_token_id=0,
            bos_token_id=1,
            eos_token_id=2,
        )
    )
    made.register_forward_pre_hook(pace)
    return made
