"""A dead run's numbers over its steps, as the diagnosis kept them: one chart a number."""

from __future__ import annotations

from stallwatch_dashboard.charts.base import Look, quiet
from stallwatch_dashboard.charts.drawing import Drawing
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


def charts(found: Diagnosis, look: Look, say: Say) -> list[tuple[str, str, Drawing]]:
    """(key, title, figure) of each number that the log tells; the primary's step is marked in all."""
    mark = found.primary.step if found.primary is not None else None
    drawn = []
    for name, title in _TITLES.items():
        lines = [one for one in found.series if one.name == name]
        if lines:
            drawn.append((name, say(title), _figure(lines, mark, look, say)))
    return drawn


def _figure(lines: list[Series], mark: int | None, look: Look, say: Say) -> Drawing:
    chart = quiet(look)
    for number, one in enumerate(lines):
        chart.add(
            type="scatter",
            x=one.steps,
            y=one.values,  # None leaves a gap
            mode="lines",
            name=say("rank", one.rank) if one.rank is not None else say("rank_unknown"),
            line={"color": look.cycle[number % len(look.cycle)], "width": 1.6},
            hovertemplate="%{y:.4g}",
        )
    if mark is not None:
        line = {"color": look.red, "dash": "dash", "width": 1}
        place = {"xref": "x", "x0": mark, "x1": mark, "yref": "y domain", "y0": 0, "y1": 1}
        chart.layout["shapes"] = [{"type": "line", "line": line, **place}]
    chart.layout["showlegend"] = len(lines) > 1
    chart.set("margin", t=30, b=36)
    chart.set("legend", y=1.05)
    chart.set("xaxis", title={"text": say("step"), "standoff": 15})
    return chart
