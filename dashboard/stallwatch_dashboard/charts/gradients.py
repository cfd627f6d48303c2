"""Gradient norm and learning rate over time, as the run told them."""

from __future__ import annotations

from collections.abc import Sequence

from stallwatch_dashboard.charts.base import Look, Span, figure
from stallwatch_dashboard.charts.drawing import Drawing
from stallwatch_dashboard.charts.traces import per_rank
from stallwatch_dashboard.data.frames import RunFrames
from stallwatch_dashboard.words import Say
from stallwatch_exporter.incident import Incident


def draw_norm(found: RunFrames, incidents: Sequence[Incident], span: Span, look: Look, say: Say) -> Drawing:
    """The norm; one that leaves its usual size comes before a loss that does."""
    chart = figure(look, span, incidents, say)
    per_rank(chart, found.grad_norm, look, say, "%{y:.4g}", name=say("grad_norm"))
    return chart


def draw_rate(found: RunFrames, incidents: Sequence[Incident], span: Span, look: Look, say: Say) -> Drawing:
    """The learning rate, as steps: it holds until it is set anew."""
    chart = figure(look, span, incidents, say)
    per_rank(chart, found.learning_rate, look, say, "%{y:.3e}", name=say("learning_rate"))
    chart.set("yaxis", exponentformat="e", showexponent="all")
    return chart
