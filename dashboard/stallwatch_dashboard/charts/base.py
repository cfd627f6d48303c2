"""Draw the parts that all charts share: axes, incident bands, and lines.

Charts show times in the user's time zone.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec
import numpy as np
import pandas as pd
from numpy.typing import NDArray

from stallwatch_dashboard import theme
from stallwatch_dashboard.data.frames import RunFrames, limit_ranks
from stallwatch_dashboard.data.overview import began
from stallwatch_dashboard.safetext import label
from stallwatch_dashboard.theme import Look
from stallwatch_dashboard.verdict import rule_name
from stallwatch_dashboard.words import Say
from stallwatch_exporter.incident import Incident

HEIGHT = 232
#: Maximum number of band names; maximum and minimum number of characters of a name.
_MOST_NAMES, _LONGEST, _SHORTEST = 3, 34, 5
_LETTERS = 72  #: number of characters that fit above a chart in a window of 1,280 pixels
Json = dict[str, Any]


@dataclass
class Drawing:
    """A chart as plain dicts: the ``data`` and ``layout`` that Plotly expects.

    The graph objects of Plotly would take tens of milliseconds for each chart, because they validate every
    assignment. Instead, the tests validate the charts against the Plotly schema.
    """

    data: list[Json] = field(default_factory=list)
    layout: Json = field(default_factory=dict)

    def add(self, **trace: Any) -> None:
        self.data.append(trace)

    def set(self, part: str, **values: Any) -> None:
        """Set keys in one part of the layout, such as ``xaxis``. Other keys in this part do not change."""
        self.layout[part] = {**self.layout.get(part, {}), **values}

    def to_json(self) -> str:
        """Return the chart as JSON for ``Plotly.react``. Arrays are encoded as bytes, which preserves NaN."""
        return msgspec.json.encode({"data": self.data, "layout": self.layout}, enc_hook=_bytes).decode()


def _bytes(array: object) -> Json:
    """Encode an array as base64 bytes.

    plotly.js 2.28 and later can read such arrays. plotly.py 5.24 contains plotly.js 2.35.
    """
    if isinstance(array, np.generic):
        return array.item()  # type: ignore[no-any-return]
    if not isinstance(array, np.ndarray):
        raise TypeError(f"a chart cannot contain {type(array).__name__}")
    kind = array.dtype.newbyteorder("<")
    encoded = {"dtype": kind.str[1:], "bdata": base64.b64encode(array.astype(kind).tobytes()).decode()}
    return encoded if array.ndim == 1 else {**encoded, "shape": ", ".join(map(str, array.shape))}


@dataclass(frozen=True)
class Span:
    """The time range that all charts of a run share, so that users can compare the charts."""

    start: float
    end: float
    live: bool = False  #: True if the run is live and the range ends at the current time
    seen_at: float | None = None  #: time of the run's last sign of life, if its data is out of date

    @property
    def seen(self) -> float:
        """The time of the run's newest data."""
        return self.end if self.seen_at is None else self.seen_at


@dataclass(frozen=True)
class Scene:
    """The run that a chart shows, and the settings of the page that shows it."""

    found: RunFrames
    incidents: Sequence[Incident]
    span: Span
    look: Look
    say: Say


T = TypeVar("T", float, NDArray[np.float64])


def milliseconds(seconds: T) -> T:
    """Convert Unix timestamps in seconds to milliseconds for Plotly, which shows the browser's local time."""
    return seconds * 1000.0


def quiet(look: Look) -> Drawing:
    """Return an empty chart with unobtrusive axes, in the colors of the user's theme."""
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
    """Return an empty chart of the time range `span`. A band and a name mark each incident."""
    chart = quiet(look)
    # An incident that began with the run's end has no duration, so it has no band.
    incidents = [incident for incident in incidents if incident.began_as[0] != "ended"]
    chart.layout |= {
        "uirevision": "keep",  # lines that the user hid stay hidden after updates
        "dragmode": "zoom",
        "showlegend": True,
        "shapes": [*(band(incident, span) for incident in incidents), *_silence(look, span)],
        "annotations": _names(look, incidents, span, say),
    }
    ends = [milliseconds(span.start), milliseconds(span.end)]
    chart.set("xaxis", type="date", range=ends, tickformatstops=_TICKS, nticks=6)
    title = {"standoff": 4}
    chart.set("yaxis", rangemode="tozero", automargin=False, fixedrange=True, title=title)
    return chart


_TICKS = [
    {"dtickrange": [None, 60_000], "value": "%H:%M:%S"},
    {"dtickrange": [60_000, 86_400_000], "value": "%H:%M"},
    {"dtickrange": [86_400_000, None], "value": "%m-%d"},
]


def band(incident: Incident, span: Span) -> Json:
    """Return the band that marks an incident from its beginning to its end."""
    colour = theme.VERMILLION if incident.severity == "critical" else theme.ORANGE
    start = began(incident)
    return rectangle(start, incident.resolved_at or max(span.end, start), colour, 0.15, 1)


def _silence(look: Look, span: Span) -> list[Json]:
    """Return a gray area for the time after the run's last sign of life, for which there is no data."""
    if span.seen_at is None or span.seen_at >= span.end:
        return []
    return [rectangle(span.seen_at, span.end, look.grey, 0.18, 0)]


def rectangle(start: float, end: float, colour: str, opacity: float, edge: int) -> Json:
    return {
        "type": "rect",
        "xref": "x",
        "yref": "paper",
        "x0": milliseconds(start),
        "x1": milliseconds(end),
        "y0": 0,
        "y1": 1,
        "fillcolor": colour,
        "opacity": opacity,
        "line": {"width": edge, "color": colour},
        "layer": "below",
    }


def _names(look: Look, incidents: Sequence[Incident], span: Span, say: Say) -> list[Json]:
    """Return the incidents' names, each above the start of the incident's band.

    A name is truncated at the next name. If too little of the name would remain, it is omitted. The last name
    ends at the right edge of the chart if it does not fit between the start of its band and the edge. A click
    on a name opens the incident. The ID of the incident is in the annotation's key ``name``.
    """
    names: list[Json] = []
    shown = sorted(
        incidents[:_MOST_NAMES], key=lambda incident: (began(incident), incident.severity == "critical")
    )
    letters = _LETTERS / max(span.end - span.start, 1.0)  # number of letters that are as wide as one second
    next_start: float | None = None
    for incident in reversed(shown):
        start, anchor = began(incident), "left"
        text = say("stall") if incident.kind == "stall" else rule_name(incident.rule, say, incident.exception)
        room = _LONGEST if next_start is None else (next_start - start) * letters - 1
        if room < min(_SHORTEST, len(text)):
            continue
        text = label(text, int(min(room, _LONGEST)))
        next_start = start
        if not names and span.end - start < len(text) / letters:
            start, anchor = span.end, "right"
            next_start = span.end - len(text) / letters
        colour = theme.VERMILLION if incident.severity == "critical" else look.grey
        above = {"xref": "x", "x": milliseconds(start), "xanchor": anchor, "yanchor": "bottom"}
        name = note(text, colour, **above)
        names.append({**name, "name": incident.id, "captureevents": True})
    return names[::-1]


def note(text: str, colour: str, **place: Any) -> Json:
    """Return a Plotly annotation that shows `text` at the upper edge of a chart."""
    font = {"size": 12, "color": colour}
    return {"text": text, "font": font, "showarrow": False, "yref": "paper", "y": 1, **place}


def per_rank(chart: Drawing, frame: pd.DataFrame, look: Look, say: Say, hover: str, *, name: str) -> None:
    """Draw a line for each rank that `limit_ranks` selects, and a line for the values without a rank."""
    shown = limit_ranks(frame)
    ranks = sorted(shown["rank"].dropna().unique())
    groups = [(say("rank", rank), shown[shown["rank"].eq(rank).fillna(False)]) for rank in ranks]
    if (rest := shown["rank"].isna()).any():
        groups.append((name, shown[rest]))
    if len(ranks) < (every := frame["rank"].nunique()):  # the note is in the legend, where it covers no line
        title, rows = groups[len(ranks) - 1]
        groups[len(ranks) - 1] = (say("few_of_ranks", title, len(ranks), every), rows)
    for index, (title, rows) in enumerate(groups):
        only = name if len(groups) == 1 else title
        line(chart, rows, only, look.cycle[index % len(look.cycle)], hover)


def number_axis(chart: Drawing, unit: str = "", *, from_zero: bool = False) -> None:
    """Configure the vertical axis for the values of a run. Call this function after drawing the lines.

    Small values are shown as powers of ten, not as 10μ. The axis starts at 0 if `from_zero` is set or if all
    values are equal. Otherwise, Plotly would choose an axis from 1 below to 1 above the value, on which 1e-05
    looks like 0.
    """
    values = np.concatenate([trace["y"] for trace in chart.data] or [np.zeros(0)])
    known = values[np.isfinite(values)]
    flat = known.size > 0 and known.min() == known.max()
    mode = "tozero" if flat or from_zero else "normal"
    chart.set("yaxis", rangemode=mode, exponentformat="e", showexponent="all", ticksuffix=unit)


def line(
    chart: Drawing,
    rows: pd.DataFrame,
    name: str,
    colour: str,
    hover: str,
    *,
    dash: str = "solid",
    stepped: bool = False,
    width: float = 2,
    axis: str = "y",
) -> None:
    """Draw a line over time, or over steps if `rows` has a column ``step``. If `rows` is empty, draw nothing.

    Set `stepped` for values that are constant until the next point.
    """
    if rows.empty:
        return
    chart.add(
        type="scatter",
        x=rows["step"].to_numpy("float64") if "step" in rows else milliseconds(rows["t"].to_numpy("float64")),
        y=rows["v"].to_numpy("float64"),
        name=name,
        mode="lines" if len(rows) > 1 else "markers",
        line={"color": colour, "width": width, "dash": dash, "shape": "hv" if stepped else "linear"},
        marker={"color": colour},
        hovertemplate=hover,
        connectgaps=False,
        yaxis=axis,
    )
