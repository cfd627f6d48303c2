"""torch itself: steps of a plain loop's optimizer, memory, unhandled exceptions."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from ..api import Probe
from . import leaving
from . import warnings as warnings_hook
from .leader import Leader
from .versions import tell_versions

_MEMORY = {
    "memory_allocated_bytes": "allocated_bytes.all.current",
    "memory_reserved_bytes": "reserved_bytes.all.current",
    "memory_peak_bytes": "allocated_bytes.all.peak",
    "allocation_retries": "num_alloc_retries",
    "out_of_memory": "num_ooms",
}


def install(module: Any, probe: Probe) -> None:
    """Watch optimizers, with the hook that ``torch.optim.optimizer`` has for it, and the process."""
    probe.samplers += [accelerator_memory, resident_memory]
    register = getattr(module, "register_optimizer_step_post_hook", None)
    if register is not None:
        leader = Leader()
        told: list[bool] = []

        def stepped(optimizer: Any, *_: Any) -> None:
            try:
                if _is_an_engines(probe) or not leader.steps(optimizer):
                    return
                probe.step(learning_rate=optimizer.param_groups[0].get("lr"))
                if not told:
                    told.append(True)
                    tell_versions(probe)
            except Exception:
                probe.failed()

        register(stepped)
    leaving.install(probe)
    warnings_hook.install(probe)
    if probe.is_rank:
        probe.announce()


def _is_an_engines(probe: Probe) -> bool:
    """Whether somebody counts steps who knows better: the user, or an engine around the optimizer."""
    if probe.told_by_user:
        return True
    hook = sys.modules.get(f"{__package__}.deepspeed")
    return hook is not None and bool(hook.trains())


def accelerator_memory() -> dict[str, float]:
    """The allocator's own figures, which ask no device; nothing before the device is in use."""
    torch = sys.modules.get("torch")
    for name in ("cuda", "npu"):
        backend = vars(torch).get(name) if torch is not None else None
        if backend is not None and backend.is_initialized():
            stats = backend.memory_stats()
            return {field: float(stats[key]) for field, key in _MEMORY.items() if key in stats}
    return {}


def resident_memory() -> dict[str, float]:
    """Resident memory of this process, where the system has ``/proc``."""
    try:
        pages = int(Path("/proc/self/statm").read_bytes().split()[1])
    except OSError:
        return {}
    return {"resident_bytes": float(pages * os.sysconf("SC_PAGE_SIZE"))}
