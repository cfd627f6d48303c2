"""Observe torch itself: the optimizer's steps in a plain training loop, and memory."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

from ..api import Probe
from ..draft import INDEX, TIME
from .leader import Leader, optimizers
from .reports import report_versions

_STEP = INDEX["step"]
_DEEPSPEED = f"{__package__}.deepspeed"  # name of the hook module for DeepSpeed
_MEMORY = {
    "memory_allocated_bytes": ("allocated_bytes", "all", "current"),
    "memory_reserved_bytes": ("reserved_bytes", "all", "current"),
    "memory_peak_bytes": ("allocated_bytes", "all", "peak"),
    "allocation_retries": ("num_alloc_retries",),
    "out_of_memory": ("num_ooms",),
}
# Windows has neither `sysconf` nor `O_CLOEXEC`. On Windows, the hook is installed, but omits the values that
# it cannot read.
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 0
_OPENED = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0)
_STATM_BYTES = 256  # enough for seven numbers
_MOST_TRAININGS = 100  # maximum number of training runs in one process


def install(module: Any, probe: Probe) -> None:
    """Watch memory, and watch optimizers through the hook of ``torch.optim.optimizer``."""
    probe.samplers += [accelerator_memory, resident_memory]
    register = getattr(module, "register_optimizer_step_post_hook", None)
    if register is not None:
        register(count_steps(probe))
    if probe.is_rank:
        probe.announce()


def count_steps(probe: Probe) -> Callable[..., None]:
    """Return a hook that counts the steps of the leading optimizer."""
    leader = Leader()
    leads = leader.leader  # local variable, because every step reads it
    reported: list[bool] = []

    def stepped(optimizer: Any, *_: Any) -> None:
        nonlocal leads
        try:
            if leads() is not optimizer:
                optimizers.add(optimizer)
            elif probe.reported_by_user:
                return
            else:
                now = probe.monotonic() + probe.offset
                if now < probe.due_at:  # a step that shares a record needs only a number and a time
                    row = probe.row
                    probe.steps = row[_STEP] = probe.steps + 1.0
                    row[TIME] = now
                    return
            if probe.reported_by_user:
                leader.follow(optimizer)
            elif _is_an_engines():
                leader.leave()
            elif leader.steps(optimizer, probe.steps):
                if 1 < leader.followed < _MOST_TRAININGS and leads() is not optimizer:
                    probe.event("training")  # a new training run, such as a trial, which can differ in size
                probe.step(learning_rate=optimizer.param_groups[0].get("lr"))
                if not reported:
                    reported.append(True)
                    report_versions(probe)
            leads = leader.leader
        except Exception:
            probe.failed()

    return stepped


def _is_an_engines() -> bool:
    """Return whether a DeepSpeed engine that contains the optimizer counts the steps."""
    hook = sys.modules.get(_DEEPSPEED)
    return hook is not None and bool(hook.trains())


def accelerator_memory() -> dict[str, float]:
    """Return the allocator's statistics, or an empty dict if no accelerator is in use. No device is queried.

    The function reads the statistics in nested form because ``memory_stats`` would flatten and sort more
    than a hundred numbers, of which only five are needed (torch 2.13, ``torch/cuda/memory.py``). torch_npu
    works in the same way.
    """
    torch = sys.modules.get("torch")
    for name in ("cuda", "npu"):
        backend = vars(torch).get(name) if torch is not None else None
        if backend is not None and backend.is_initialized():
            stats = backend.memory_stats_as_nested_dict()
            found = {field: _inner(stats, keys) for field, keys in _MEMORY.items()}
            return {field: float(value) for field, value in found.items() if value is not None}
    return {}


def _inner(stats: Any, keys: tuple[str, ...]) -> Any:
    for key in keys:
        stats = stats.get(key)
        if stats is None:
            return None
    return stats


def resident_memory() -> dict[str, float]:
    """Return the resident memory of this process in bytes, or an empty dict if there is no ``/proc``.

    The function makes only three system calls because training steps wait for it. A path object and a
    buffered file would take two to three times as long.
    """
    try:
        status = os.open("/proc/self/statm", _OPENED)
    except OSError:
        return {}
    try:
        pages = int(os.read(status, _STATM_BYTES).split()[1])
    finally:
        os.close(status)
    return {"resident_bytes": float(pages * _PAGE_BYTES)}
