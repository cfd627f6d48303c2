"""Folders that DeepSpeed's ``save_checkpoint`` writes: whether every rank's part is there.

Names as in deepspeed 0.19.8, ``runtime/engine.py`` (``_get_zero_ckpt_name``, ``_get_ckpt_name``): the file
``latest`` names the folder; in it ``[bf16_]zero_pp_rank_<dp>_mp_rank_<mp>_optim_states.pt`` for each rank,
and the model in ``mp_rank_<mp>_model_states.pt`` (stages 1 and 2) or
``zero_pp_rank_<dp>_mp_rank_<mp>_model_states.pt`` (stage 3).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from stallwatch_exporter.checkpoints.faults import Fault, examples
from stallwatch_exporter.checkpoints.torchzip import facts_of
from stallwatch_rules.text.lazy import lazy

_OPTIMIZER = lazy(r"(?P<kind>(?:bf16_|fp16_)?zero_pp_rank)_(?P<dp>\d+)_mp_rank_(?P<mp>\d+)_optim_states\.pt")
PARTITIONED = lazy(r"zero_pp_rank_(?P<dp>\d+)_mp_rank_(?P<mp>\d+)_model_states\.pt")
_WHOLE = lazy(r"mp_rank_(?P<mp>\d+)_model_states\.pt")
_MOST_RANKS = 1 << 17


def check_latest(latest: Path) -> Iterator[Fault]:
    """Faults of a ``latest`` file; ``OSError`` where it cannot be read."""
    with latest.open("rb") as file:
        tag = file.read(4096).decode("utf-8", "replace").strip()
    if not tag or Path(tag).name != tag:
        yield Fault(latest, "latest-unreadable", "names no folder", "没有指明目录")
    elif not (latest.parent / tag).is_dir():
        yield Fault(
            latest,
            "latest-missing",
            f"names the folder {tag}, which is not there",
            f"指向目录 {tag}，但它不存在",
            rule="resume-checkpoint-failed",
        )


def check_zero_folder(folder: Path, names: list[str]) -> Iterator[Fault]:
    """Parts that are missing from a folder with these files in it."""
    optimizer = {
        (int(found["mp"]), int(found["dp"])) for name in names if (found := _OPTIMIZER.fullmatch(name))
    }
    parts = {(int(found["mp"]), int(found["dp"])) for name in names if (found := PARTITIONED.fullmatch(name))}
    whole = {int(found["mp"]) for name in names if (found := _WHOLE.fullmatch(name))}
    if not optimizer:
        return
    wanted = _wanted(folder, names, optimizer | parts)
    yield from _missing(folder, "optim_states", wanted - optimizer)
    if parts:
        yield from _missing(folder, "model_states", wanted - parts)
    elif not whole and not any(name.startswith("layer_") for name in names):
        yield Fault(
            folder,
            "missing-model-states",
            "holds optimizer states, but no *_model_states.pt",
            "有优化器状态，但没有 *_model_states.pt",
        )


def _wanted(folder: Path, names: list[str], seen: set[tuple[int, int]]) -> set[tuple[int, int]]:
    """The parts that there should be: as many ranks as the checkpoint itself says, or as many as seen."""
    ranks = max(dp for _, dp in seen) + 1
    for name in sorted(names):
        if name.endswith("_model_states.pt"):
            facts = facts_of(folder / name)
            if facts is not None and "dp_world_size" in facts.numbers:
                ranks = max(ranks, facts.numbers["dp_world_size"])
                break
    if ranks > _MOST_RANKS:  # no number of ranks: a damaged file, or a name that is something else
        return seen
    return {(mp, dp) for mp in {mp for mp, _ in seen} for dp in range(ranks)}


def _missing(folder: Path, kind: str, missing: set[tuple[int, int]]) -> Iterator[Fault]:
    if missing:
        ranks = [str(dp) for _, dp in sorted(missing)]
        yield Fault(
            folder,
            f"missing-{kind.replace('_', '-')}",
            f"the {kind} of ranks {examples(ranks)} are missing",
            f"缺少 rank {examples(ranks)} 的 {kind}",
        )
