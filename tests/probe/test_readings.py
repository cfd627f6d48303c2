"""Values that are read once a second within a step: memory of the allocator and of the process."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from stallwatch_exporter.probe.hooks import torch as hook
from stallwatch_exporter.probe.hooks.torch import accelerator_memory


def torch_with(monkeypatch: pytest.MonkeyPatch, name: str, stats: dict[str, Any]) -> None:
    """Install a torch whose allocator for this kind of device returns these statistics."""
    backend = SimpleNamespace(is_initialized=lambda: True, memory_stats_as_nested_dict=lambda: stats)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(**{name: backend}))


@pytest.mark.parametrize("name", ["cuda", "npu"])
def test_statistics_of_the_allocator_are_read(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    stats = {
        "allocated_bytes": {"all": {"current": 5, "peak": 7}, "small_pool": {"current": 1, "peak": 2}},
        "reserved_bytes": {"all": {"current": 8}},
        "num_alloc_retries": 2,
        "num_ooms": 0,
    }
    torch_with(monkeypatch, name, stats)
    assert accelerator_memory() == {
        "memory_allocated_bytes": 5.0,
        "memory_peak_bytes": 7.0,
        "memory_reserved_bytes": 8.0,
        "allocation_retries": 2.0,
        "out_of_memory": 0.0,
    }
    del stats["num_ooms"], stats["reserved_bytes"]
    assert set(accelerator_memory()) == {
        "memory_allocated_bytes",
        "memory_peak_bytes",
        "allocation_retries",
    }


def test_unused_device_is_not_queried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=SimpleNamespace(is_initialized=bool)))
    assert accelerator_memory() == {}


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="no /proc")  # noqa: PTH110
def test_resident_memory_grows_with_allocations() -> None:
    """The test uses a separate process, because other threads of this process may free memory."""
    code = f"""
from {hook.__name__} import resident_memory
before = resident_memory()["resident_bytes"]
held = b"x" * {64 << 20}
print(resident_memory()["resident_bytes"] - before)
"""
    grown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert float(grown.stdout) > (64 << 20) / 2


def test_hook_works_without_proc(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On Windows, the module can be imported, and only this reading is empty."""
    with monkeypatch.context() as windows:
        windows.delattr(os, "sysconf")
        windows.delattr(os, "O_CLOEXEC")

        def refuses(*_: object) -> int:
            raise FileNotFoundError

        windows.setattr(os, "open", refuses)
        spec = importlib.util.spec_from_loader(f"{hook.__name__}_elsewhere", hook.__loader__)
        assert spec is not None
        elsewhere = importlib.util.module_from_spec(spec)
        code = compile(Path(hook.__file__).read_bytes(), hook.__file__, "exec")
        exec(code, elsewhere.__dict__)
        assert elsewhere.resident_memory() == {}
