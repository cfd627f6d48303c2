"""Keys at the top of the configuration that DeepSpeed passes over without a word."""

from __future__ import annotations

import difflib
from collections.abc import Iterator

from stallwatch_lint.config_keys import SECTIONS, TOP
from stallwatch_lint.diagnostic import Diagnostic, Words
from stallwatch_lint.dsconfig import DsConfig

_ALIKE = 0.84  #: difflib's ratio of ``train_micro_batch_size`` to the key that was meant
_ZERO = "zero_optimization"


def check_top_keys(config: DsConfig) -> Iterator[Diagnostic]:
    """Misspelt keys, and those of ``zero_optimization`` that stand outside of it.

    DeepSpeed 0.19.8 asks for the keys that it knows and ignores all others (``runtime/config.py``,
    ``_initialize_params``): people keep notes and settings of their own there, so that a key is told only
    where one that DeepSpeed reads is nearly the same.
    """
    if config.accelerate:
        return
    for key in config.values:
        if key in TOP:
            continue
        if key in SECTIONS[_ZERO,].keys:
            meant = f"{_ZERO}.{key}"
        else:
            near = difflib.get_close_matches(key, TOP, n=1, cutoff=_ALIKE)
            if not near or _put_aside(key, near[0]):
                continue
            meant = near[0]
        yield _ignored(key, meant).at(config.file, config.line(key))


def _put_aside(key: str, name: str) -> bool:
    """Whether it is the name with a mark before or behind it (``_optimizer``, ``optimizer_old``): on purpose,
    as JSON has no comments."""
    before, _, behind = key.partition(name)
    return name in key and not (before + behind).isalnum()


def _ignored(key: str, meant: str) -> Diagnostic:
    inside = meant.startswith(f"{_ZERO}.")
    return Diagnostic(
        "config-key-ignored",
        "likely",
        Words(f"DeepSpeed ignores the key {key}", f"DeepSpeed 会忽略键 {key}"),
        Words(
            "What it does not know at the top of the configuration it passes over without a word: nothing is"
            " set by it.",
            "配置顶层中它不认识的键会被静默忽略：这里写的值不起作用。",
        ),
        Words(
            f"Move it into {_ZERO}." if inside else f"Did you mean {meant}?",
            f"把它移到 {_ZERO} 里。" if inside else f"是否想写 {meant}？",
        ),
        "deepspeed-config-invalid",
    )
