"""The picture of a stall under trace-cache invalidations: one line climbs while the other stops."""

from __future__ import annotations

from collections.abc import Sequence

from stallwatch_dashboard.charts.base import Look, Span, figure
from stallwatch_dashboard.charts.drawing import Drawing
from stallwatch_dashboard.charts.traces import line
from stallwatch_dashboard.data.frames import RunFrames
from stallwatch_dashboard.words import Say
from stallwatch_exporter.incident import Incident


def draw(found: RunFrames, incidents: Sequence[Incident], span: Span, look: Look, say: Say) -> Drawing:
    """The chart: steps on the left axis, invalidations on the right, told apart by colour and by dashes."""
    chart = figure(look, span, incidents, say)
    line(chart, found.steps, look, say("steps_reached"), look.blue, "%{y:,}", stepped=True, width=3)
    name = say("invalidations_so_far")
    line(chart, found.invalidations, look, name, look.red, "%{y:,}", stepped=True, dash="dot", axis="y2")
    right = {
        "overlaying": "y",
        "side": "right",
        "showgrid": False,
        "ticks": "",
        "zeroline": False,
        # Headroom of its own, so that the two lines never lie on each other when both stand still.
        "range": [0, 1.35 * _highest(found)],
        "nticks": 5,
        "tickmode": "auto",
        "automargin": False,
        "fixedrange": True,
    }
    chart.set("margin", r=62)
    chart.set("yaxis", **_in(look.blue, say("step"), 4))
    chart.set("yaxis2", **right, **_in(look.red, say("invalidations"), 15))
    return chart


def _highest(found: RunFrames) -> float:
    return 1.0 if found.invalidations.empty else float(found.invalidations["v"].max()) or 1.0


def _in(colour: str, title: str, standoff: int) -> dict[str, object]:
    named = {"text": title, "font": {"color": colour}, "standoff": standoff}
    return {"title": named, "tickfont": {"color": colour}}
