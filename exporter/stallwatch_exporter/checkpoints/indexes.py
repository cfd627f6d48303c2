"""Index files of sharded weights (``*.index.json``): whether the shards that they name are there."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from stallwatch_exporter.checkpoints.faults import Fault, examples
from stallwatch_exporter.checkpoints.safetensors import tensor_names

MAX_INDEX = 32 << 20
_RULE = "checkpoint-archive-corrupt"


def check_index(path: Path) -> Iterator[Fault]:
    """Faults of one index; ``OSError`` where it cannot be read."""
    if path.stat().st_size > MAX_INDEX:
        yield Fault(path, "index-unreadable", "far too large for an index", "作为索引文件过大")
        return
    try:
        index = json.loads(path.read_bytes())
        shards = index["weight_map"]
        named = {str(name): str(shard) for name, shard in shards.items()}
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError):
        yield Fault(
            path, "index-unreadable", "no JSON object with a weight_map", "不是含 weight_map 的 JSON 对象"
        )
        return
    # A shard stands beside its index: a name that leads elsewhere is not followed.
    outside = sorted({shard for shard in named.values() if Path(shard).name != shard})
    missing = sorted(
        {shard for shard in named.values() if shard not in outside and not (path.parent / shard).is_file()}
    )
    if outside:
        yield Fault(
            path,
            "index-outside",
            f"names files outside of its folder: {examples(outside)}",
            f"指向了目录之外的文件：{examples(outside)}",
        )
    if missing:
        yield Fault(
            path,
            "missing-shards",
            f"{len(missing)} shards are missing: {examples(missing)}",
            f"缺少 {len(missing)} 个分片：{examples(missing)}",
        )
    yield from _absent(path, named, {*outside, *missing})


def _absent(path: Path, named: dict[str, str], skipped: set[str]) -> Iterator[Fault]:
    """Tensors that a shard is to hold and does not, for shards whose header can be read."""
    absent: list[str] = []
    for shard in sorted({shard for shard in named.values() if shard.endswith(".safetensors")} - skipped):
        held = tensor_names(path.parent / shard)
        if held:
            absent += [name for name, where in named.items() if where == shard and name not in held]
    if absent:
        yield Fault(
            path,
            "missing-tensors",
            f"{len(absent)} tensors are not in the shards that are to hold them: {examples(absent)}",
            f"{len(absent)} 个张量不在索引所指的分片中：{examples(absent)}",
        )
