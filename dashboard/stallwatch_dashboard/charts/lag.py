"""Who is behind: rank by time, dark where a rank's step is lower than that of the rank ahead."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from stallwatch_dashboard.charts.base import HEIGHT, Look, Span, figure
from stallwatch_dashboard.charts.drawing import Drawing
from stallwatch_dashboard.data.frames import RunFrames
from stallwatch_dashboard.words import Say
from stallwatch_exporter.incident import Incident

_MOMENTS = 120
_ROW_PIXELS, _TALLEST = 12, 460


def lag(rank_steps: pd.DataFrame, moments: int = _MOMENTS) -> pd.DataFrame:
    """Steps behind the rank ahead: a row a rank, a column a moment (Unix seconds); NaN before a rank's start.

    Of each span of time the last known step counts, so ranks that are scraped one after the other within it
    are not taken for late.
    """
    known = rank_steps.dropna(subset=["rank", "v"])
    if known.empty:
        return pd.DataFrame()
    times = known["t"].to_numpy("float64")
    first, last = times.min(), times.max()
    width = (last - first) / moments or 1.0
    order = np.argsort(times, kind="stable")
    spans = np.minimum(((times[order] - first) / width).astype(int), moments - 1)
    ranks, rows = np.unique(known["rank"].to_numpy("int64")[order], return_inverse=True)
    wide = np.full((len(ranks), moments), np.nan)
    wide[rows, spans] = known["v"].to_numpy("float64")[order]  # of several in one span the last one stays
    told = np.maximum.accumulate(np.where(np.isnan(wide), 0, np.arange(moments)), axis=1)
    wide = np.take_along_axis(wide, told, axis=1)  # where nothing was told, what was told before
    ahead = np.fmax.reduce(wide, axis=0)
    return pd.DataFrame(ahead - wide, ranks, [first + (span + 0.5) * width for span in range(moments)])


def draw(found: RunFrames, incidents: Sequence[Incident], span: Span, look: Look, say: Say) -> Drawing:
    """The heat map; all in step leaves it empty, one that stays behind is a stripe."""
    behind = lag(found.rank_steps)
    chart = figure(look, span, incidents, say)
    if behind.empty:
        return chart
    values = behind.to_numpy("float64")
    highest = float(np.nanmax(values, initial=0.0))
    chart.add(
        type="heatmap",
        x=[look.time(float(moment)) for moment in behind.columns],
        y=[str(rank) for rank in behind.index],
        z=values.astype("float32"),
        zmin=0,
        zmax=max(1.0, highest),
        colorscale=[[0, look.page], [0.001, look.faint], [1, look.red]],
        colorbar={
            "thickness": 10,
            "title": {"text": say("steps_behind"), "side": "right"},
            "nticks": 4,
            "outlinewidth": 0,
            "ticks": "",
        },
        hovertemplate=say("rank", "%{y}") + "<br>" + say("behind", "%{z:.0f}") + "<extra></extra>",
        hoverongaps=False,
    )
    rows = len(behind.index)
    height = min(_TALLEST, max(HEIGHT, 90 + _ROW_PIXELS * rows))
    chart.layout |= {"height": height, "hovermode": "closest", "showlegend": False}
    chart.set(
        "yaxis",
        type="category",
        autorange="reversed",
        nticks=min(rows, 16),
        showgrid=False,
        rangemode="normal",
        title={"text": say("ranks"), "standoff": 4},
    )
    return chart
