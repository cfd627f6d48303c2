"""The loss over time; a NaN leaves a gap."""

from __future__ import annotations

from collections.abc import Sequence

from stallwatch_dashboard.charts.base import Look, Span, figure
from stallwatch_dashboard.charts.drawing import Drawing
from stallwatch_dashboard.charts.traces import per_rank
from stallwatch_dashboard.data.frames import RunFrames
from stallwatch_dashboard.words import Say
from stallwatch_exporter.incident import Incident


def draw(found: RunFrames, incidents: Sequence[Incident], span: Span, look: Look, say: Say) -> Drawing:
    """The chart."""
    chart = figure(look, span, incidents, say)
    per_rank(chart, found.loss, look, say, "%{y:.4g}", name=say("loss"))
    chart.set("yaxis", rangemode="normal")
    return chart
