"""Seconds of each step against the threshold of a stall; while a run waits, how long the open step takes."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from stallwatch_dashboard import formats
from stallwatch_dashboard.charts.base import Look, Span, figure
from stallwatch_dashboard.charts.drawing import Drawing
from stallwatch_dashboard.charts.traces import line, per_rank
from stallwatch_dashboard.data.frames import RunFrames
from stallwatch_dashboard.words import Say
from stallwatch_exporter.incident import Incident

_HOVER = "%{y:.3g} s"


def draw(found: RunFrames, incidents: Sequence[Incident], span: Span, look: Look, say: Say) -> Drawing:
    """The chart."""
    chart = figure(look, span, incidents, say)
    per_rank(chart, found.step_seconds, look, say, _HOVER, name=say("step_time"))
    waited = _waited(found, span)
    highest = top(found, waited)
    # The generous threshold of the start would be a line that falls from out of the picture.
    limits = found.threshold.assign(v=found.threshold["v"].where(found.threshold["v"] <= highest))
    line(chart, limits, look, say("stall_threshold"), look.grey, _HOVER, dash="dash", stepped=True)
    if not found.threshold.empty and (limit := float(found.threshold["v"].iloc[-1])) > highest:
        _tell_of(limit, chart, look, say)
    if waited:
        open_step = pd.DataFrame({"t": [span.end - waited, span.end], "v": [0.0, waited]})
        line(chart, open_step, look, say("since_last_step"), look.red, _HOVER, dash="dot")
    chart.set("yaxis", ticksuffix=" s", range=[0, highest])
    return chart


def _tell_of(limit: float, chart: Drawing, look: Look, say: Say) -> None:
    """In words, of a threshold so far above the steps that its line would press them flat."""
    chart.layout["annotations"] = [
        *chart.layout["annotations"],
        {
            "xref": "paper",
            "yref": "paper",
            "x": 1,
            "y": 1,
            "xanchor": "right",
            "yanchor": "top",
            "text": say("threshold_above", formats.seconds(limit)),
            "showarrow": False,
            "font": {"size": 12, "color": look.grey},
        },
    ]


def top(found: RunFrames, waited: float) -> float:
    """High enough for the steps and today's threshold; the generous one of the start goes off the top."""
    slowest = float(found.step_seconds["v"].max()) if not found.step_seconds.empty else 0.0
    limit = float(found.threshold["v"].iloc[-1]) if not found.threshold.empty else 0.0
    shown = max(slowest, waited)
    return 1.1 * (max(shown, limit) if limit <= 20 * shown else shown) or 1.0


def _waited(found: RunFrames, span: Span) -> float:
    return (
        max(0.0, span.end - found.last_step_at)
        if span.live and span.heard is None and found.last_step_at
        else 0.0
    )
