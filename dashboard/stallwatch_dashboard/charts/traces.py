"""Lines in a chart: one, or one a rank."""

from __future__ import annotations

import pandas as pd

from stallwatch_dashboard.charts.base import Look
from stallwatch_dashboard.charts.drawing import Drawing
from stallwatch_dashboard.data.frames import limit_ranks
from stallwatch_dashboard.words import Say


def per_rank(chart: Drawing, frame: pd.DataFrame, look: Look, say: Say, hover: str, *, name: str) -> None:
    """One line a rank; with many ranks the lowest, the median and the highest."""
    shown = limit_ranks(frame)
    ranks = sorted(shown["rank"].dropna().unique())
    groups = [(say("rank", rank), shown[shown["rank"].eq(rank).fillna(False)]) for rank in ranks]
    if (rest := shown["rank"].isna()).any():
        groups.append((name, shown[rest]))
    if len(ranks) < (every := frame["rank"].nunique()):  # said in the legend, which covers no line
        title, rows = groups[len(ranks) - 1]
        groups[len(ranks) - 1] = (say("few_of_ranks", title, len(ranks), every), rows)
    for index, (title, rows) in enumerate(groups):
        only = name if len(groups) == 1 else title
        line(chart, rows, look, only, look.cycle[index % len(look.cycle)], hover)


def line(
    chart: Drawing,
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
    """One line; `stepped` for what keeps its value until it changes."""
    if rows.empty:
        return
    chart.add(
        type="scatter",
        x=look.times(rows["t"]),
        y=rows["v"].to_numpy("float64"),
        name=name,
        mode="lines" if len(rows) > 1 else "markers",
        line={"color": colour, "width": width, "dash": dash, "shape": "hv" if stepped else "linear"},
        marker={"color": colour},
        hovertemplate=hover,
        connectgaps=False,
        yaxis=axis,
    )
