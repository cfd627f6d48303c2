"""ZeRO-3's trace of the order of modules: each time it is thrown away, why, and which modules it was about.

Newer versions of DeepSpeed print nothing of it unless they are asked to, and nothing at all where the cause
lies outside the forward pass.
"""

from __future__ import annotations

from types import FrameType
from typing import Any

from ..api import Probe
from ..noticing import notice_method
from .deepspeed import engines

_MOST_NAMED = 32  # pairs of modules whose names are looked up: that walks through the model
_PRIVATE = "_PartitionedParameterCoordinator__"


def install(module: Any, probe: Probe) -> None:
    """Watch the coordinator of ``deepspeed.runtime.zero.partitioned_param_coordinator``."""
    named: set[tuple[Any, ...]] = set()

    def invalidated(coordinator: Any, frame: FrameType) -> None:
        how, about, modules = _why(coordinator, frame)
        probe.add(f"invalidations_{how}")
        key = (how, *sorted(about.items()))
        if key not in named and len(named) < _MOST_NAMED:
            named.add(key)
            names = {role: name_of(each) for role, each in modules.items()}
            probe.event("trace-cache", None, how=how, **about, **names)

    notice_method(module.PartitionedParameterCoordinator, "_invalidate_trace", invalidated, probe.failed)
    for how in ("mismatch", "short", "external"):
        probe.add(f"invalidations_{how}", 0.0)  # none so far, which is more than not known


def _why(coordinator: Any, frame: FrameType) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """Mismatch (another module than last time), short (more modules than then) or external; and details."""
    if frame.f_code.co_name != "trace_prologue":
        return "external", {"called_by": frame.f_code.co_name}, {}
    got = frame.f_locals.get("sub_module")
    step = getattr(coordinator, _PRIVATE + "step_id", 0)
    order = getattr(coordinator, _PRIVATE + "submodule_order", ())
    if step >= len(order):
        return "short", {"got": _id(got), "recorded": len(order)}, {"got_name": got}
    expected = order[step]
    about = {"got": _id(got), "expected": _id(expected)}
    return "mismatch", about, {"got_name": got, "expected_name": expected}


def _id(module: Any) -> int:
    """The number that DeepSpeed gave the module: ``ds_id``, before 0.17 ``id``; -1 without one."""
    number = getattr(module, "ds_id", getattr(module, "id", -1))
    return number if isinstance(number, int) else -1


def name_of(module: Any) -> str:
    """The module's path in its model and its class."""
    kind = type(module).__name__
    for engine in engines():
        for name, each in engine.module.named_modules():
            if each is module:
                return f"{name or '(the model)'} ({kind})"
    return f"({kind})"
