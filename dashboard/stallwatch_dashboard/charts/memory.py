"""Memory per rank, or of all processes where the log tells nothing of the accelerator's."""

from __future__ import annotations

from collections.abc import Sequence

from stallwatch_dashboard.charts.base import Look, Span, figure
from stallwatch_dashboard.charts.drawing import Drawing
from stallwatch_dashboard.charts.traces import per_rank
from stallwatch_dashboard.data.frames import RunFrames
from stallwatch_dashboard.words import Say
from stallwatch_exporter.incident import Incident

_MIB, _GIB = 1024**2, 1024**3


def draw(found: RunFrames, incidents: Sequence[Incident], span: Span, look: Look, say: Say) -> Drawing:
    """The chart."""
    chart = figure(look, span, incidents, say)
    unit, size = ("GiB", _GIB) if found.memory["v"].max() >= _GIB else ("MiB", _MIB)
    scaled = found.memory.assign(v=found.memory["v"] / size)
    per_rank(chart, scaled, look, say, f"%{{y:.3g}} {unit}", name=say(found.memory_kind or "allocated"))
    chart.set("yaxis", ticksuffix=f" {unit}")
    return chart
