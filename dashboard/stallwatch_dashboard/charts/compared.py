"""Two runs over their steps: this one in solid lines, the other one dashed."""

from __future__ import annotations

import pandas as pd

from stallwatch_dashboard.charts.base import Look, Span, figure
from stallwatch_dashboard.charts.drawing import Drawing
from stallwatch_dashboard.data.frames import RunFrames
from stallwatch_dashboard.safetext import label
from stallwatch_dashboard.words import Say

#: Frames that are compared, with the key of their title and what stands behind a number.
_CHARTS = {
    "loss": ("loss", ""),
    "step_seconds": ("step_time", " s"),
    "grad_norm": ("grad_norm", ""),
    "learning_rate": ("learning_rate", ""),
}


def charts(
    runs: tuple[str, str], own: RunFrames, other: RunFrames, look: Look, say: Say
) -> list[tuple[str, str, Drawing]]:
    """(key, title, figure) of each number that both runs have."""
    drawn = []
    for name, (title, unit) in _CHARTS.items():
        lines = [by_step(getattr(found, name), found.steps) for found in (own, other)]
        if any(line.empty for line in lines):
            continue
        highest = max(float(line["step"].max()) for line in lines)
        chart = figure(look, Span(0.0, 1.0), (), say)
        for run, line, dash, colour in zip(runs, lines, ("solid", "dash"), look.cycle[:2], strict=True):
            chart.add(
                type="scatter",
                x=line["step"].to_numpy("float64"),
                y=line["v"].to_numpy("float64"),
                name=label(run, 40),
                mode="lines",
                line={"dash": dash, "color": colour, "width": 2},
                hovertemplate=f"%{{y:.4g}}{unit}",
            )
        title_of_steps = {"text": say("step")}
        chart.set("xaxis", type="linear", range=[0, highest or 1], tickformatstops=[], title=title_of_steps)
        chart.set("yaxis", ticksuffix=unit, rangemode="normal", exponentformat="e")
        drawn.append((f"compared-{name}", say(title), chart))
    return drawn


def by_step(frame: pd.DataFrame, steps: pd.DataFrame) -> pd.DataFrame:
    """Columns ``step`` and ``v``: the lowest rank's numbers at the steps reached then."""
    if frame.empty or steps.empty:
        return pd.DataFrame({"step": [], "v": []})
    ranks = frame["rank"].dropna()
    own = frame[frame["rank"] == ranks.min()] if not ranks.empty else frame
    reached = steps[["t", "v"]].rename(columns={"v": "step"}).sort_values("t")
    joined = pd.merge_asof(own.sort_values("t")[["t", "v"]], reached, on="t")
    return joined.dropna(subset=["step"])[["step", "v"]].reset_index(drop=True)
