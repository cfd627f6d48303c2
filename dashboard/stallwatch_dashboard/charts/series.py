"""A dead run's numbers over its steps, as the diagnosis kept them: one chart a number."""

from __future__ import annotations

import plotly.graph_objects as go

from stallwatch_dashboard.charts.base import HEIGHT, Look
from stallwatch_dashboard.words import Say
from stallwatch_rules.records import Diagnosis, Series

#: The series of a diagnosis, and the key of their words.
_TITLES = {
    "loss": "loss",
    "grad_norm": "grad_norm",
    "learning_rate": "learning_rate",
    "loss_scale": "loss_scale",
    "step_seconds": "step_time",
}


def charts(found: Diagnosis, look: Look, say: Say) -> list[tuple[str, str, go.Figure]]:
    """(key, title, figure) of each number that the log tells; the primary's step is marked in all."""
    mark = found.primary.step if found.primary is not None else None
    drawn = []
    for name, title in _TITLES.items():
        lines = [one for one in found.series if one.name == name]
        if lines:
            drawn.append((name, say(title), _figure(lines, mark, look, say)))
    return drawn


def _figure(lines: list[Series], mark: int | None, look: Look, say: Say) -> go.Figure:
    chart = go.Figure()
    for number, one in enumerate(lines):
        chart.add_scatter(
            x=one.steps,
            y=one.values,  # None leaves a gap
            mode="lines",
            name=say("rank", one.rank) if one.rank is not None else say("rank_unknown"),
            line={"color": look.cycle[number % len(look.cycle)], "width": 1.6},
            hovertemplate="%{y:.4g}",
        )
    if mark is not None:
        chart.add_vline(x=mark, line={"color": look.red, "dash": "dash", "width": 1})
    chart.update_layout(
        height=HEIGHT,
        margin={"l": 62, "r": 14, "t": 30, "b": 36},
        legend={"orientation": "h", "x": 0, "y": 1.05, "xanchor": "left", "yanchor": "bottom"},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        font={"family": '"Source Sans", "Noto Sans CJK SC", sans-serif', "size": 13, "color": look.text},
        hoverlabel={"bgcolor": look.page, "font": {"color": look.text}},
        hovermode="x unified",
        showlegend=len(lines) > 1,
    )
    chart.update_xaxes(title=say("step"), showgrid=False, linecolor=look.line)
    chart.update_yaxes(gridcolor=look.line, zeroline=False, nticks=5)
    return chart
