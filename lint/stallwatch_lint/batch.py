"""Check that the batch sizes of a configuration are consistent.

DeepSpeed requires ``train_batch_size == train_micro_batch_size_per_gpu * gradient_accumulation_steps *
world_size``. If only two of the three sizes are set, DeepSpeed computes the third size by integer division.
It then checks the product (0.9.0 to 0.19.8, ``runtime/config.py``, ``_set_batch_related_parameters`` and
``_batch_assertion``).
"""

from __future__ import annotations

from collections.abc import Iterator

from stallwatch_lint.diagnostic import Diagnostic, diagnostic
from stallwatch_lint.dsconfig import DsConfig, has_auto, number
from stallwatch_lint.run import Run

_TOTAL, _MICRO, _STEPS = "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"
SIZES = (_TOTAL, _MICRO, _STEPS)


def check_batch(config: DsConfig, run: Run) -> Iterator[Diagnostic]:
    """Check that the three batch sizes are consistent with each other and with the run's number of ranks.

    Yield a diagnostic if a size is not positive, or if no number of ranks makes the sizes consistent. Also
    yield a diagnostic if the sizes require a different number of ranks than the run has. Yield nothing if
    ranks share a batch (tensor or sequence parallelism) or if elasticity or the autotuner chooses the
    sizes.
    """
    world = run.world_size
    for key in SIZES:
        value = number(config.get(key))
        if value is not None and value <= 0:
            yield diagnostic("batch-size-not-positive", config.at(key), key=key, value=value)
            return
    total, micro, steps = (_whole(config, key) for key in SIZES)
    if total is None or _shares_batches(config):
        return
    place, product = config.at(_TOTAL), (micro or 1) * (steps or 1)
    if micro is None or steps is None:
        if world and not has_auto(config.values) and total % (product * world):
            yield diagnostic(
                "batch-size-remainder",
                place,
                total=total,
                product=product,
                world=world,
                least=product * world,
            )
        return
    sizes = f"{micro} * {steps}"
    if total % product:
        yield diagnostic("batch-size-no-multiple", place, total=total, sizes=sizes, product=product)
    elif world and total != product * world:
        yield diagnostic(
            "batch-size-other-ranks",
            place,
            total=total,
            sizes=sizes,
            world=world,
            fitting=total // product,
            right=product * world,
        )


def ranks_wanted(config: DsConfig) -> int | None:
    """Return the number of ranks for which the configured batch sizes are consistent.

    Return ``None`` if a size is missing, if ranks share batches, or if no number of ranks makes the sizes
    consistent.
    """
    total, micro, steps = (_whole(config, key) for key in SIZES)
    if not total or not micro or not steps or _shares_batches(config) or total % (micro * steps):
        return None
    return total // (micro * steps)


def _whole(config: DsConfig, key: str) -> int | None:
    value = number(config.get(key))
    return int(value) if value is not None and value > 0 and value == int(value) else None


def _shares_batches(config: DsConfig) -> bool:
    others = ("tensor_parallel", "sequence_parallel_size", "autotuning")
    return config.on("elasticity", "enabled") or any(map(config.has, others))
