"""Metrics with every series present, for tests of the page and of its documentation."""

from __future__ import annotations

from typing import Any

from stallwatch_exporter.rings.reader import Record
from stallwatch_exporter.runs.runfolder import AgentInfo
from stallwatch_exporter.serving.metrics import RunMetrics
from stallwatch_rules.records import Line, Match, Sample


def agent(host: str, **facts: Any) -> AgentInfo:
    """Return the record of an agent that starts on this host."""
    times = {"started_at": 1.0, "updated_at": 1.0}
    return AgentInfo(run="sft-1", pid=1, host=host, command=[], cwd="/", **times, **facts)


LINE = Line(text="x", source="out", number=1, rank=1)


def full() -> RunMetrics:
    """Return metrics with every series present."""
    metrics = RunMetrics("sft-1")
    values = {
        "loss": 0.5,
        "grad_norm": float("nan"),
        "learning_rate": 1e-4,
        "loss_scale": 65536.0,
        "overflow": 1.0,
        "memory_allocated_bytes": 1e9,
        "memory_peak_bytes": 2e9,
    }
    metrics.sample(Sample(rank=None, time=1.0, step=3, values=values))
    found = {"step": 3.0, "memory_reserved_bytes": 3e9, "resident_bytes": 1e9, "allocation_retries": 1.0}
    metrics.hooked(Record(0, 1, 1.0, {**found, "out_of_memory": 1.0}))
    metrics.read(10, 1000)
    metrics.match(Match("zero3-trace-cache-invalidated", LINE, {}))
    metrics.warning(1)
    metrics.progress(3, 100)
    metrics.stepped(0, 1234.5)
    metrics.step_took(1.5)
    metrics.phase("train")
    metrics.thresholds({"train": 30.0, "init": 1800.0})
    metrics.stalled(2.0)
    metrics.incident("cuda-oom", "critical", True)
    metrics.host_memory(10**9)
    metrics.host_memory_limit(10**10)
    metrics.progressed(1234.5)
    metrics.saved(1000.0)
    metrics.saved(1200.0)
    metrics.ended(1300.0, "failed")
    metrics.ranks({0: True, 1: False})
    metrics.dropped(2)
    metrics.slowdown(0.09)
    metrics.hosts(3, 2, 1)
    metrics.identity(agent("node1", job="8123.0", attempt=1, node=0), {"torch": "2.13.0"})
    return metrics
