"""What all charts share: quiet axes, times in the reader's zone, incidents drawn as bands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from stallwatch_dashboard import theme
from stallwatch_dashboard.charts.drawing import Drawing
from stallwatch_dashboard.data.overview import began
from stallwatch_dashboard.safetext import label
from stallwatch_dashboard.verdict import rule_name
from stallwatch_dashboard.words import Say
from stallwatch_exporter.incident import Incident

HEIGHT = 232
_MOST_NAMES, _LONGEST, _SHORTEST = 3, 34, 5  #: names of bands; letters of one
_LETTERS = 72  #: that fit beside each other above a chart in a window of 1,280 pixels


@dataclass(frozen=True)
class Look:
    """How the reader sees the page."""

    dark: bool = False

    @property
    def cycle(self) -> tuple[str, ...]:
        """Colours for lines of one kind."""
        return theme.DARK_CYCLE if self.dark else theme.LIGHT_CYCLE

    @property
    def blue(self) -> str:
        """Progress."""
        return self.cycle[0]

    @property
    def red(self) -> str:
        """What goes wrong."""
        return theme.VERMILLION

    @property
    def grey(self) -> str:
        """Limits and notes."""
        return "#9AA5B1" if self.dark else "#616E7C"

    @property
    def text(self) -> str:
        """Words and numbers."""
        return (theme.DARK if self.dark else theme.LIGHT)["textColor"]

    @property
    def page(self) -> str:
        """What is behind the chart."""
        return (theme.DARK if self.dark else theme.LIGHT)["backgroundColor"]

    @property
    def faint(self) -> str:
        """The lightest shade that is told from the page."""
        return "#4A3A1F" if self.dark else "#FCE3C0"

    @property
    def line(self) -> str:
        """Axes and grid."""
        return (theme.DARK if self.dark else theme.LIGHT)["borderColor"]

    def times(self, seconds: pd.Series) -> NDArray[np.float64]:
        """Unix seconds as Plotly takes them: milliseconds, which it shows in the browser's own time zone."""
        return seconds.to_numpy("float64") * 1000.0

    def time(self, second: float) -> float:
        """One such time."""
        return second * 1000.0


@dataclass(frozen=True)
class Span:
    """The time that all charts of a run show, so that they can be read against each other."""

    start: float
    end: float
    live: bool = False  #: whether its end is now
    heard: float | None = None  #: when the run was last heard of, where that is too long ago

    @property
    def seen(self) -> float:
        """Up to when anything is known."""
        return self.end if self.heard is None else self.heard


def quiet(look: Look) -> Drawing:
    """An empty chart in the reader's colours, with axes that keep in the background."""
    axis = {"autotypenumbers": "strict", "ticks": "", "zeroline": False, "linecolor": look.line}
    return Drawing(
        layout={
            "height": HEIGHT,
            "margin": {"l": 62, "r": 14, "t": 40, "b": 24},
            "paper_bgcolor": "rgba(0,0,0,0)",
            "plot_bgcolor": "rgba(0,0,0,0)",
            "font": {
                "family": '"Source Sans", "Noto Sans CJK SC", sans-serif',
                "size": 13,
                "color": look.text,
            },
            "hoverlabel": {"bgcolor": look.page, "font": {"color": look.text}, "align": "left"},
            "hovermode": "x unified",
            "legend": {"orientation": "h", "x": 0, "y": 1.1, "xanchor": "left", "yanchor": "bottom"},
            "xaxis": {**axis, "showgrid": False, "automargin": True},
            "yaxis": {**axis, "gridcolor": look.line, "automargin": True, "nticks": 5},
        }
    )


def figure(look: Look, span: Span, incidents: Sequence[Incident], say: Say) -> Drawing:
    """An empty chart over `span` with the incidents in it."""
    chart = quiet(look)
    # No band has room after an end.
    incidents = [incident for incident in incidents if incident.began_as[0] != "ended"]
    chart.layout |= {
        "uirevision": "keep",  # lines that the reader hid stay hidden through every update
        "dragmode": "zoom",
        "showlegend": True,
        "shapes": [*(_band(look, incident, span) for incident in incidents), *_silence(look, span)],
        "annotations": _names(look, incidents, span, say),
    }
    ends = [look.time(span.start), look.time(span.end)]
    chart.set("xaxis", type="date", range=ends, tickformatstops=_TICKS, nticks=6)
    title = {"standoff": 4}
    chart.set("yaxis", rangemode="tozero", automargin=False, fixedrange=True, title=title)
    return chart


_TICKS = [
    {"dtickrange": [None, 60_000], "value": "%H:%M:%S"},
    {"dtickrange": [60_000, 86_400_000], "value": "%H:%M"},
    {"dtickrange": [86_400_000, None], "value": "%m-%d"},
]


def _band(look: Look, incident: Incident, span: Span) -> dict[str, object]:
    colour = theme.VERMILLION if incident.severity == "critical" else theme.ORANGE
    start = began(incident)
    return {
        "type": "rect",
        "xref": "x",
        "yref": "paper",
        "x0": look.time(start),
        "x1": look.time(incident.resolved_at or max(span.end, start)),
        "y0": 0,
        "y1": 1,
        "fillcolor": colour,
        "opacity": 0.15,
        "line": {"width": 1, "color": colour},
        "layer": "below",
    }


def _silence(look: Look, span: Span) -> list[dict[str, object]]:
    """Grey where nothing was heard of the run any more: what is drawn is as old as its edge."""
    if span.heard is None or span.heard >= span.end:
        return []
    return [
        {
            "type": "rect",
            "xref": "x",
            "yref": "paper",
            "x0": look.time(span.heard),
            "x1": look.time(span.end),
            "y0": 0,
            "y1": 1,
            "fillcolor": look.grey,
            "opacity": 0.18,
            "line": {"width": 0},
            "layer": "below",
        }
    ]


def _names(look: Look, incidents: Sequence[Incident], span: Span, say: Say) -> list[dict[str, object]]:
    """A name above the start of each band, cut where the next begins, left out where nothing would stay.

    The board opens the incident that ``name`` holds when the name is clicked.
    """
    names = []
    shown = sorted(incidents[:_MOST_NAMES], key=lambda one: (began(one), one.severity == "critical"))
    letters = _LETTERS / max(span.end - span.start, 1.0)  # a second
    for incident, later in zip(shown, [*shown[1:], None], strict=False):
        room = _LONGEST if later is None else (began(later) - began(incident)) * letters - 1
        text = say("stall") if incident.kind == "stall" else rule_name(incident.rule, say, incident.exception)
        if room < min(_SHORTEST, len(text)):
            continue
        names.append(
            {
                "xref": "x",
                "yref": "paper",
                "x": look.time(began(incident)),
                "y": 1,
                "xanchor": "left",
                "yanchor": "bottom",
                "text": label(text, int(min(room, _LONGEST))),
                "showarrow": False,
                "name": incident.id,
                "captureevents": True,
                "font": {
                    "size": 12,
                    "color": theme.VERMILLION if incident.severity == "critical" else look.grey,
                },
            }
        )
    return names
