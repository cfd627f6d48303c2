"""Derive the parallel axis of a process group from the names that a framework gives to the group.

The names are from Megatron-core 0.15 (``megatron/core/parallel_state.py``: ``_TENSOR_MODEL_PARALLEL_GROUP``),
DeepSpeed 0.19.8 (``deepspeed/utils/groups.py``; ``runtime/pipe/topology.py``: ``pp_proc_group``), and torch
2.13 (``torch/distributed/device_mesh.py``: ``mesh_tp``; torchtitan has dimensions such as ``dp_shard``).
"""

from __future__ import annotations

from collections.abc import Iterable

from stallwatch_rules.stacks.records import Axis
from stallwatch_rules.text.lazy import lazy

_WORDS = lazy(r"[a-z]+")
_AXES: dict[str, Axis] = {
    **dict.fromkeys(
        ("dp", "edp", "ddp", "hsdp", "fsdp", "efsdp", "data", "zero", "replicate", "shard"), "dp"
    ),
    **dict.fromkeys(("tp", "etp", "tensor", "slice"), "tp"),
    **dict.fromkeys(("pp", "pipe", "pipeline"), "pp"),
    **dict.fromkeys(("ep", "expert"), "ep"),
    **dict.fromkeys(("cp", "sp", "context", "sequence", "ulysses"), "cp"),
    "world": "world",
}
# Gradients are also reduced over the context-parallel ranks. Experts have their own groups.
_TOGETHER: dict[frozenset[Axis], Axis] = {
    frozenset(("dp", "cp")): "dp",
    frozenset(("dp", "ep")): "dp",
    frozenset(("dp", "cp", "ep")): "dp",
    frozenset(("tp", "ep")): "tp",
}


def axis_of(names: Iterable[str], *, whole: bool = False) -> Axis:
    """Return the parallel axis of the first name that shows an axis.

    If no name shows an axis, return "world" for a group that contains the `whole` job. Otherwise, return "".
    """
    for name in names:
        found = frozenset(_AXES[word] for word in _WORDS.findall(name.lower()) if word in _AXES)
        axis = next(iter(found)) if len(found) == 1 else _TOGETHER.get(found, "")
        if axis:
            return axis
    return "world" if whole else ""
