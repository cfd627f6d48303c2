"""The batch sizes of a configuration: whether they multiply out.

DeepSpeed demands ``train_batch_size == train_micro_batch_size_per_gpu * gradient_accumulation_steps *
world_size``; of two given ones it works the third out by integer division and then checks the product (0.9.0
to 0.19.8, ``runtime/config.py``, ``_set_batch_related_parameters`` and ``_batch_assertion``).
"""

from __future__ import annotations

from collections.abc import Iterator

from stallwatch_lint.diagnostic import Diagnostic, Words
from stallwatch_lint.dsconfig import DsConfig, number
from stallwatch_rules.messages import Message

_RULE = "config-train-batch-size-mismatch"
_TOTAL, _MICRO, _STEPS = "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"


def check_batch(config: DsConfig, world_size: int | None = None) -> Iterator[Diagnostic]:
    """Sizes that cannot multiply out, whatever the number of ranks, or not with ``world_size`` ranks.

    Where ranks share a batch (tensor or sequence parallelism) or elasticity chooses the sizes, nothing is
    said.
    """
    for key in (_TOTAL, _MICRO, _STEPS):
        value = number(config.get(key))
        if value is not None and value <= 0:
            yield _diagnostic(
                config,
                key,
                Words(f"{key} is {value:g}", f"{key} 为 {value:g}"),
                Words("DeepSpeed asserts that it is greater than 0.", "DeepSpeed 断言它必须大于 0。"),
                Words('Write a positive number, or "auto".', '写一个正数，或 "auto"。'),
            )
            return
    sizes = [_whole(config, key) for key in (_TOTAL, _MICRO, _STEPS)]
    total, micro, steps = sizes
    if total is None or _shares_batches(config):
        return
    if micro is not None and steps is not None:
        yield from _all_three(config, total, micro, steps, world_size)
    elif world_size and not config.has_auto:
        yield from _two(config, total, micro or 1, steps or 1, world_size)


def ranks_wanted(config: DsConfig) -> int | None:
    """The only number of ranks that three given sizes fit; ``None`` where they leave it open."""
    total, micro, steps = (_whole(config, key) for key in (_TOTAL, _MICRO, _STEPS))
    if not total or not micro or not steps or _shares_batches(config) or total % (micro * steps):
        return None
    return total // (micro * steps)


def _all_three(
    config: DsConfig, total: int, micro: int, steps: int, world: int | None
) -> Iterator[Diagnostic]:
    product = f"{micro} * {steps}"
    if total % (micro * steps):
        yield _diagnostic(
            config,
            _TOTAL,
            Words(f"{total} is no multiple of {product}", f"{total} 不是 {product} 的倍数"),
            Words(
                "train_batch_size must be micro batch * accumulation steps * ranks: no number of ranks fits.",
                "train_batch_size 必须等于 micro batch * 累积步数 * rank 数：任何 rank 数都不成立。",
            ),
            Words(
                f"Leave train_batch_size out, or take a multiple of {micro * steps}.",
                f"删掉 train_batch_size，或取 {micro * steps} 的倍数。",
            ),
        )
    elif world and total != micro * steps * world:
        right = micro * steps * world
        yield _diagnostic(
            config,
            _TOTAL,
            Words(f"{total} != {product} * {world} ranks", f"{total} != {product} * {world} 个 rank"),
            Words(
                f"The three sizes fit {total // (micro * steps)} ranks, and the run has {world}.",
                f"这三个值只适合 {total // (micro * steps)} 个 rank，而训练有 {world} 个。",
            ),
            Words(
                f"Set train_batch_size to {right}, or leave it out.",
                f"把 train_batch_size 设为 {right}，或删掉它。",
            ),
        )


def _two(config: DsConfig, total: int, micro: int, steps: int, world: int) -> Iterator[Diagnostic]:
    if total % (micro * steps * world):
        yield _diagnostic(
            config,
            _TOTAL,
            Words(
                f"{total} does not divide by {micro * steps} * {world} ranks",
                f"{total} 不能被 {micro * steps} * {world} 个 rank 整除",
            ),
            Words(
                "The missing size is worked out by integer division, and the product is then checked.",
                "缺少的那个值由整数除法得出，之后再检查乘积。",
            ),
            Words(
                f"Take a multiple of {micro * steps * world} for train_batch_size.",
                f"train_batch_size 取 {micro * steps * world} 的倍数。",
            ),
        )


def _whole(config: DsConfig, key: str) -> int | None:
    value = number(config.get(key))
    return int(value) if value is not None and value > 0 and value == int(value) else None


def _shares_batches(config: DsConfig) -> bool:
    return (
        config.on("elasticity", "enabled")
        or config.has("tensor_parallel")
        or config.has("sequence_parallel_size")
        or config.has("autotuning")
    )


def _diagnostic(config: DsConfig, key: str, what: Message, why: Message, fix: Message) -> Diagnostic:
    return Diagnostic("batch-size", "fails", what, why, fix, _RULE, config.file, config.line(key))
