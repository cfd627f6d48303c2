"""Simulated chats at the real chats' addresses, and notices to send."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from stallwatch_alerts.messages.compose import Message
from stallwatch_alerts.notice import Notice


def _neighbour(name: str) -> ModuleType:
    """Import a module of this folder, which is not a package."""
    path = Path(__file__).with_name(f"{name}.py")
    found = importlib.util.spec_from_file_location(f"channels_{name}", path)
    assert found is not None and found.loader is not None
    module = importlib.util.module_from_spec(found)
    sys.modules[found.name] = module
    found.loader.exec_module(module)
    return module


edge_module = _neighbour("edge")
protocols_module = _neighbour("protocols")
chats_module = _neighbour("chats")


@pytest.fixture
def edge(monkeypatch: pytest.MonkeyPatch) -> Iterator[object]:
    found = edge_module.Edge(monkeypatch)
    yield found
    found.close()


TEXT = """No step has finished for 42 s. The stall threshold, learned from this run's steps, is 30 s.

Run: myrun on node-1
At: rank 1, step 160 of 900, training, last loss 0.63214

Likely cause: ZeRO-3 trace cache invalidated (zero3-trace-cache-invalidated), fatal
No step since the last invalidation.

Evidence:
    Invalidate trace cache @ step 10: expected module 19, but got module 11
    File "train.py", line 3, in <module> & __init__ **x**

What to do:
1. Call set_z3_leaf_modules on the class of the experts.
2. Set log_trace_cache_warnings to false in ds_config.json.

Rule: https://github.com/stallwatch/stallwatch/blob/main/rules/zero3(a).md
Dashboard: https://watch.example.org/run?run=my%20run&x=1"""


@pytest.fixture
def notice() -> Notice:
    title = "[myrun] stalled: no step for 42 s after step 160 of 900"
    facts = {"run": "myrun", "rule": "x", "severity": "critical", "status": "open"}
    return Notice(Message(title, TEXT), "failure", dict(facts))
