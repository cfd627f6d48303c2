"""Forward passes are counted from one thread while another trains: a step may come at any moment."""

from __future__ import annotations

import sys
from types import FrameType, ModuleType
from typing import Any

import pytest

from stallwatch_exporter.probe.api import Probe
from stallwatch_exporter.probe.draft import INDEX
from stallwatch_exporter.probe.forward_passes import ForwardPasses


def forward(_: object) -> int:
    return 1


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Replace ``torch.nn.Module`` by a stand-in, and return it."""
    torch = ModuleType("torch.nn.modules.module")
    torch.Module = type("Module", (), {"__call__": forward})  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, torch.__name__, torch)
    monkeypatch.delitem(sys.modules, "torch._dynamo.utils", raising=False)
    return torch.Module


def begin(passes: ForwardPasses, probe: Probe, step_at: int) -> int:
    """Start the count, with a training step before line `step_at`; return the number of lines."""
    lines = 0

    def each(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal lines
        if frame.f_globals.get("__name__") != ForwardPasses.__module__:
            return None
        if event == "line":
            lines += 1
            if lines == step_at and probe.stop_counting is not None:
                probe.stop_counting()
        return each

    before = sys.gettrace()
    sys.settrace(each)
    try:
        passes.begin()
    finally:
        sys.settrace(before)
    return lines


def test_step_during_setup_leaves_modules_callable(module: Any) -> None:
    probe = Probe(None)
    lines = begin(ForwardPasses(probe), probe, 0)
    assert lines > 10 and probe.stop_counting is not None
    probe.stop_counting()
    for line in range(1, lines + 1):
        begin(ForwardPasses(probe), probe, line)
        assert module()() == 1
        if probe.stop_counting is not None:
            probe.stop_counting()
        assert vars(module)["__call__"] is forward and probe.stop_counting is None


def test_forward_passes_are_not_counted_twice(module: Any) -> None:
    probe = Probe(None)
    ForwardPasses(probe).begin()
    ForwardPasses(probe).begin()
    module()()
    assert probe.row[INDEX["forwards"]] == 1.0
