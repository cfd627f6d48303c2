"""Memory by torch's allocator on a device: the only part of the probe whose tests need a device."""

from __future__ import annotations

import importlib.util

import pytest
from ranks import Ranks


def _has_device() -> bool:
    if importlib.util.find_spec("torch") is None:
        return False
    import torch

    return bool(torch.cuda.is_available())


pytestmark = [pytest.mark.repro, pytest.mark.skipif(not _has_device(), reason="no CUDA device")]


def test_allocator_memory_is_reported_without_synchronization(ranks: Ranks) -> None:
    code = (
        "import torch\n"
        "held = torch.nn.Parameter(torch.ones(1 << 20, device='cuda'))\n"
        "optimizer = torch.optim.SGD([held], lr=0.0)\n"
        "torch.cuda.set_sync_debug_mode('error')\n"
        "for _ in range(3):\n"
        "    (held * 2).sum().backward(); optimizer.step()\n"
        "torch.cuda.set_sync_debug_mode('default')\n"
        "torch.cuda.synchronize()\n"
        "from stallwatch_probe.api import current\n"
        "current()._sampled_at = 0.0\n"  # makes the next step sample again, as one a second later would
        "optimizer.step()\n"
    )
    ranks.run(code)
    last = [each.values for each in ranks.records() if "step" in each.values][-1]
    assert last["memory_allocated_bytes"] >= 4 << 20
    assert last["memory_reserved_bytes"] >= last["memory_allocated_bytes"]
    assert last["memory_peak_bytes"] >= last["memory_allocated_bytes"]
    assert last["loss"] == 2 << 20
    assert last["allocation_retries"] == last["out_of_memory"] == 0
