"""Charts of one kind of number: loss, memory, warnings; and step time with its threshold."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
import plotly.graph_objects as go

from stallwatch_dashboard.charts.base import Look, Span, figure
from stallwatch_dashboard.frames import RunFrames, limit_ranks
from stallwatch_dashboard.words import Say
from stallwatch_exporter.incident import Incident

_GIB = 1024**3


def loss(found: RunFrames, incidents: Sequence[Incident], span: Span, look: Look, say: Say) -> go.Figure:
    """The loss; a NaN leaves a gap."""
    chart = figure(look, span, incidents)
    _per_rank(chart, found.loss, look, say, "%{y:.4g}", name=say("loss"))
    chart.update_yaxes(rangemode="normal")
    return chart


def memory(found: RunFrames, incidents: Sequence[Incident], span: Span, look: Look, say: Say) -> go.Figure:
    """Memory per rank."""
    chart = figure(look, span, incidents)
    in_gib = found.memory.assign(v=found.memory["v"] / _GIB)
    _per_rank(chart, in_gib, look, say, "%{y:.3g} GiB", name=say("memory"))
    chart.update_yaxes(ticksuffix=" GiB")
    return chart


def warnings(found: RunFrames, incidents: Sequence[Incident], span: Span, look: Look, say: Say) -> go.Figure:
    """Warnings so far."""
    chart = figure(look, span, incidents)
    _line(chart, found.warnings, look, say("warnings"), look.cycle[1], "%{y:,}", stepped=True)
    chart.update_layout(showlegend=False)
    return chart


def step_time(
    found: RunFrames, incidents: Sequence[Incident], span: Span, look: Look, say: Say, *, waiting: bool
) -> go.Figure:
    """Seconds of each step, the threshold of a stall and, while `waiting`, how long the open step takes."""
    chart = figure(look, span, incidents)
    _per_rank(chart, found.step_seconds, look, say, "%{y:.3g} s", name=say("step_time"))
    _line(
        chart,
        found.threshold,
        look,
        say("stall_threshold"),
        look.grey,
        "%{y:.3g} s",
        dash="dash",
        stepped=True,
    )
    if waiting and found.last_step_at is not None and span.end > found.last_step_at:
        open_step = pd.DataFrame(
            {"t": [found.last_step_at, span.end], "v": [0.0, span.end - found.last_step_at]}
        )
        _line(chart, open_step, look, say("since_last_step"), look.red, "%{y:.3g} s", dash="dot")
    chart.update_yaxes(ticksuffix=" s", range=[0, _top(found, span, waiting)])
    return chart


def _top(found: RunFrames, span: Span, waiting: bool) -> float:
    """High enough for the steps and the threshold of now; the generous one of the start goes off the top."""
    heights = [found.step_seconds["v"].max()] if not found.step_seconds.empty else []
    if not found.threshold.empty and len(heights):
        heights.append(min(found.threshold["v"].iloc[-1], 20 * heights[0]))
    if waiting and found.last_step_at is not None:
        heights.append(span.end - found.last_step_at)
    return 1.1 * max(heights, default=1.0)


def progress(found: RunFrames, incidents: Sequence[Incident], span: Span, look: Look, say: Say) -> go.Figure:
    """The picture of a stall under trace-cache invalidations: one line climbs while the other stops."""
    chart = figure(look, span, incidents)
    _line(chart, found.steps, look, say("steps_reached"), look.blue, "%{y:,}", stepped=True, width=3)
    _line(
        chart,
        found.invalidations,
        look,
        say("invalidations_so_far"),
        look.red,
        "%{y:,}",
        stepped=True,
        dash="dot",
        axis="y2",
    )
    chart.update_layout(
        margin={**chart.layout.margin.to_plotly_json(), "r": 62},
        yaxis={
            "title": {"text": say("step"), "font": {"color": look.blue}},
            "tickfont": {"color": look.blue},
        },
        yaxis2={
            "overlaying": "y",
            "side": "right",
            "showgrid": False,
            "zeroline": False,
            "rangemode": "tozero",
            "nticks": 5,
            "tickmode": "auto",
            "automargin": False,
            "title": {"text": say("invalidations"), "font": {"color": look.red}},
            "tickfont": {"color": look.red},
        },
    )
    return chart


def _per_rank(chart: go.Figure, frame: pd.DataFrame, look: Look, say: Say, hover: str, *, name: str) -> None:
    shown = limit_ranks(frame)
    groups = list(shown.groupby("rank", dropna=False, sort=True))
    for index, (rank, rows) in enumerate(groups):
        title = name if len(groups) == 1 or pd.isna(rank) else say("rank", rank)
        _line(chart, rows, look, title, look.cycle[index % len(look.cycle)], hover)


def _line(
    chart: go.Figure,
    rows: pd.DataFrame,
    look: Look,
    name: str,
    colour: str,
    hover: str,
    *,
    dash: str = "solid",
    stepped: bool = False,
    width: float = 2,
    axis: str = "y",
) -> None:
    if rows.empty:
        return
    chart.add_trace(
        go.Scatter(
            x=look.times(rows["t"]),
            y=rows["v"].astype("float64"),
            name=name,
            mode="lines",
            line={"color": colour, "width": width, "dash": dash, "shape": "hv" if stepped else "linear"},
            hovertemplate=hover,
            connectgaps=False,
            yaxis=axis,
        )
    )
