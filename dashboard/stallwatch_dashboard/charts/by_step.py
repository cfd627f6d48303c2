"""Draw charts over steps, either to compare two runs or to show an ended run from its diagnosis."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from stallwatch_dashboard.charts.base import Drawing, Span, figure, line, number_axis, quiet
from stallwatch_dashboard.data.frames import RunFrames
from stallwatch_dashboard.safetext import label
from stallwatch_dashboard.theme import Look
from stallwatch_dashboard.words import Say
from stallwatch_rules.records import Diagnosis, Series

_MOST_NAMED = 8  #: maximum number of lines with a name in the legend; equals the number of colors
#: Names of the frames that the comparison of two runs shows.
_COMPARED = ("loss", "step_seconds", "grad_norm", "learning_rate")
#: Names of the series that a diagnosis can contain.
_IN_DIAGNOSES = ("loss", "grad_norm", "learning_rate", "loss_scale", "step_seconds")


def _title(name: str, say: Say) -> str:
    return say("step_time" if name == "step_seconds" else name)


def compared(
    runs: tuple[str, str], own: RunFrames, other: RunFrames, look: Look, say: Say
) -> list[tuple[str, str, Drawing]]:
    """Return (key, title, figure) for each metric that both runs have. The line of `other` is dashed."""
    drawn = []
    for name in _COMPARED:
        unit = " s" if name == "step_seconds" else ""
        lines = [by_step(getattr(found, name), found.steps) for found in (own, other)]
        if any(rows.empty for rows in lines):
            continue
        highest = max(float(rows["step"].max()) for rows in lines)
        chart = figure(look, Span(0.0, 1.0), (), say)
        for run, rows, dash, colour in zip(runs, lines, ("solid", "dash"), look.cycle[:2], strict=True):
            line(chart, rows, label(run, 40), colour, f"%{{y:.4g}}{unit}", dash=dash)
        title_of_steps = {"text": say("step")}
        chart.set("xaxis", type="linear", range=[0, highest or 1], tickformatstops=[], title=title_of_steps)
        number_axis(chart, unit)
        drawn.append((f"compared-{name}", _title(name, say), chart))
    return drawn


def by_step(frame: pd.DataFrame, steps: pd.DataFrame) -> pd.DataFrame:
    """Return the values of the lowest rank as columns ``step`` and ``v``.

    Each value is assigned the step that the run had reached at the time of the value.
    """
    if frame.empty or steps.empty:
        return pd.DataFrame({"step": [], "v": []})
    ranks = frame["rank"].dropna()
    rows = frame[frame["rank"] == ranks.min()] if not ranks.empty else frame
    reached = steps[["t", "v"]].rename(columns={"v": "step"}).sort_values("t")
    joined = pd.merge_asof(rows.sort_values("t")[["t", "v"]], reached, on="t")
    return joined.dropna(subset=["step"])[["step", "v"]].reset_index(drop=True)


def of_diagnosis(found: Diagnosis, look: Look, say: Say) -> list[tuple[str, str, Drawing]]:
    """Return (key, title, figure) for each metric in the log. The step of the primary finding is marked."""
    mark = found.primary.step if found.primary is not None else None
    drawn = []
    for name in _IN_DIAGNOSES:
        lines = [series for series in found.series if series.name == name]
        if lines:
            title = _title(name, say)
            if every := lines[0].of_ranks:
                title = say("few_of_ranks", title, len({series.rank for series in lines}), every)
            drawn.append((name, title, _line_chart(lines, mark, found.blamed, look, say)))
    return drawn


def _line_chart(
    lines: list[Series], mark: int | None, blamed: Sequence[int], look: Look, say: Say
) -> Drawing:
    """Draw a line for each series. If a legend cannot list all series, only `blamed` ranks have a color."""
    chart = quiet(look)
    unit = " s" if lines[0].name == "step_seconds" else ""
    shown = {series.rank for series in lines}
    if many := len(lines) > _MOST_NAMED:
        shown = set(blamed[:_MOST_NAMED])
        lines = sorted(lines, key=lambda series: series.rank in shown)  # later lines cover earlier lines
    for number, series in enumerate(lines):
        rows = pd.DataFrame({"step": series.steps, "v": series.values})  # a value of None leaves a gap
        name = say("rank", series.rank) if series.rank is not None else say("rank_unknown")
        named = series.rank in shown
        colour = look.cycle[(len(lines) - 1 - number if many else number) % len(look.cycle)]
        line(chart, rows, name, colour if named else look.grey, f"%{{y:.4g}}{unit}", width=1.6)
        chart.data[-1]["showlegend"] = named
    number_axis(chart, unit)
    if mark is not None and lines[0].by == "step":
        style = {"color": look.red, "dash": "dash", "width": 1}
        place = {"xref": "x", "x0": mark, "x1": mark, "yref": "y domain", "y0": 0, "y1": 1}
        chart.layout["shapes"] = [{"type": "line", "line": style, **place}]
    chart.layout["showlegend"] = len(lines) > 1
    chart.set("margin", t=30, b=36)
    chart.set("legend", y=1.05)
    chart.set("xaxis", title={"text": say(lines[0].by), "standoff": 15})
    return chart
