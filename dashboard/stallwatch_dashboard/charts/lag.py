"""Draw a heat map that shows, over time, how many steps each rank or host lags behind.

Blamed hosts and ranks are marked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from stallwatch_dashboard.charts.base import HEIGHT, Drawing, Json, Scene, Span, band, milliseconds, rectangle
from stallwatch_dashboard.data.frames import SILENT_SECONDS, RunFrames
from stallwatch_dashboard.safetext import label
from stallwatch_dashboard.theme import Look
from stallwatch_exporter.incident import Incident

_MOMENTS = 120
_ROW_PIXELS, _TALLEST = 12, 640
_MOST_NAMED = 16  #: maximum number of rows with a name at the axis
_LONGEST = 24  #: maximum number of characters of a host's name at the axis


def lag(rank_steps: pd.DataFrame, moments: int = _MOMENTS) -> pd.DataFrame:
    """Return, for each time, how many steps each rank is behind the leading rank.

    The result has a row for each rank and a column for each time span (a Unix timestamp in seconds). Cells
    before a rank's start are NaN. In each time span, the last known step of a rank counts. Therefore, ranks
    that are scraped at different times within the span do not appear to lag.
    """
    known = rank_steps.dropna(subset=["rank", "v"]).sort_values("t", kind="stable")
    if known.empty:
        return pd.DataFrame()
    first = known["t"].iloc[0]
    width = (known["t"].iloc[-1] - first) / moments or 1.0
    spans = ((known["t"] - first) / width).astype(int).clip(upper=moments - 1)
    steps = known["v"].groupby([known["rank"].astype(int), spans]).last().unstack()
    steps = steps.reindex(columns=range(moments)).ffill(axis="columns")
    steps.columns = pd.Index(first + (np.arange(moments) + 0.5) * width)
    return -steps.sub(steps.max(), axis="columns")


@dataclass(frozen=True)
class Row:
    """A row of the heat map. It shows either a single rank or the slowest rank of a host."""

    host: str
    rank: int | None = None


def is_folded(hosts: Mapping[int, str]) -> bool:
    """Return whether the heat map has a row for each host, because the run's ranks are on several hosts."""
    return len(set(hosts.values())) > 1


def _rows(found: RunFrames, host: str) -> list[Row]:
    """Return a row for each rank of `host`.

    If `host` is empty, return a row for each host of the run, or for each rank of a run on a single host.
    """
    if host:
        return [Row(host, rank) for rank in sorted(found.hosts) if found.hosts[rank] == host]
    ranks = sorted({int(rank) for rank in found.rank_steps["rank"].dropna()})
    if not is_folded(found.hosts):
        return [Row("", rank) for rank in ranks]
    return [Row(host) for host in dict.fromkeys(found.hosts.get(rank, "") for rank in ranks)]


def blamed_hosts(incidents: Sequence[Incident], hosts: Mapping[int, str]) -> list[str]:
    """Return the hosts whose ranks are blamed by open incidents. Hosts of the newest incidents come first."""
    ranks = [
        rank
        for incident in sorted(incidents, key=lambda incident: -incident.opened_at)
        if incident.status == "open"
        for rank in _odd(incident)
    ]
    return list(dict.fromkeys(hosts[rank] for rank in ranks if rank in hosts))


def silent_hosts(hosts: Sequence[str], found: RunFrames, incidents: Sequence[Incident]) -> list[str]:
    """Return the hosts that are silent.

    A host is silent if an open incident lists it as silent. It is also silent if its last report is more
    than a minute older than the newest report of all hosts.
    """
    last = max(found.seen_at.values(), default=0.0)
    named = {
        host
        for incident in incidents
        if incident.status == "open" and incident.stacks is not None
        for host in incident.stacks.silent
    }
    return [host for host in hosts if host in named or found.seen_at.get(host, last) < last - SILENT_SECONDS]


def draw_lag(chart: Drawing, scene: Scene, *, host: str = "") -> None:
    """Draw the heat map of the run or, if `host` is set, of the ranks on `host`.

    Dark cells show that a rank lags, so a rank that stays behind appears as a dark stripe.
    """
    found, incidents, span, look, say = scene.found, scene.incidents, scene.span, scene.look, scene.say
    behind, rows = lag(found.rank_steps), _rows(found, host)
    if behind.empty or not rows:
        return
    values = _values(behind, rows, found.hosts)
    named = [say("rank", row.rank) if row.rank is not None else label(row.host, _LONGEST) for row in rows]
    chart.add(
        type="heatmap",
        x=[milliseconds(float(moment)) for moment in behind.columns],
        y=list(range(len(rows))),
        z=values.astype("float32"),
        customdata=[[name] * len(behind.columns) for name in named],
        zmin=0,
        zmax=max(1.0, float(np.nanmax(values, initial=0.0))),
        colorscale=[[0, look.page], [0.001, look.faint], [1, look.red]],
        colorbar={
            "thickness": 10,
            "title": {"text": say("steps_behind"), "side": "right"},
            "nticks": 4,
            "outlinewidth": 0,
            "ticks": "",
        },
        hovertemplate="%{customdata}<br>" + say("behind", "%{z:.0f}") + "<extra></extra>",
        hoverongaps=False,
    )
    marks = [(number, incident) for incident in incidents for number in _blamed(incident, rows, found.hosts)]
    blamed = {number for number, _ in marks}
    for shape in chart.layout["shapes"]:  # the map would hide bands, which have similar colors
        if shape["line"]["width"]:
            line = {**shape["line"], "dash": "dot"}
            shape |= {"fillcolor": "rgba(0,0,0,0)", "opacity": 1, "layer": "above", "line": line}
    silences = _silences(rows, found.seen_at, span, look)
    silent = {int(shape["y0"] + 0.5) for shape in silences}
    chart.layout["shapes"] += [*silences, *(_frame(number, incident, span) for number, incident in marks)]
    height = min(_TALLEST, max(HEIGHT, 90 + _ROW_PIXELS * len(rows)))
    chart.layout |= {"height": height, "hovermode": "closest", "showlegend": False}
    shown = _named_rows(len(rows), blamed | silent)
    chart.set(
        "yaxis",
        range=[len(rows) - 0.5, -0.5],
        tickmode="array",
        tickvals=shown,
        ticktext=["▶ " * (at in blamed) + "? " * (at in silent) + named[at] for at in shown],
        showgrid=False,
        rangemode="normal",
        automargin=True,
        title={"text": ""},
    )


def _values(behind: pd.DataFrame, rows: Sequence[Row], hosts: Mapping[int, str]) -> np.ndarray:
    """Return the number of steps by which each row lags. A host lags as much as its slowest rank."""
    of_hosts = behind.groupby([hosts.get(int(rank), "") for rank in behind.index]).max()
    parts = [of_hosts.loc[row.host] if row.rank is None else behind.loc[row.rank] for row in rows]
    return np.array(parts, "float64")


def _odd(incident: Incident) -> list[int]:
    odd = incident.stacks.odd if incident.stacks is not None else []
    return odd if odd or incident.rank is None else [incident.rank]


def _blamed(incident: Incident, rows: Sequence[Row], hosts: Mapping[int, str]) -> list[int]:
    """Return the indexes of the rows with blamed ranks, or an empty list if every row has blamed ranks."""
    ranks = set(_odd(incident))
    guilty = {hosts[rank] for rank in ranks if rank in hosts}
    found = [
        number
        for number, row in enumerate(rows)
        if (row.host in guilty if row.rank is None else row.rank in ranks)
    ]
    return found if len(found) < len(rows) else []


def _frame(number: int, incident: Incident, span: Span) -> Json:
    """Return a frame that surrounds a row for the duration of the incident."""
    shape = _on_row(band(incident, span), number)
    del shape["fillcolor"], shape["opacity"]
    shape["line"] = {**shape["line"], "width": 2}
    return shape


def _silences(rows: Sequence[Row], seen_at: Mapping[str, float], span: Span, look: Look) -> list[Json]:
    """Return a gray area for each row whose host has been silent for a minute while other hosts report."""
    last = max(seen_at.values(), default=0.0)
    return [
        _on_row(rectangle(seen, max(span.seen, seen), look.grey, 0.5, 0), number)
        for number, row in enumerate(rows)
        if (seen := seen_at.get(row.host, last)) < last - SILENT_SECONDS
    ]


def _on_row(shape: Json, number: int) -> Json:
    return shape | {"yref": "y", "y0": number - 0.5, "y1": number + 0.5, "layer": "above"}


def _named_rows(rows: int, marked: set[int]) -> list[int]:
    """Return the rows whose names are shown on the axis: marked rows, and evenly spaced rows between them."""
    apart = -(-rows // _MOST_NAMED)
    first = sorted(marked)[:_MOST_NAMED]
    others = [number for number in range(0, rows, apart) if all(abs(number - row) >= apart for row in first)]
    return sorted([*first, *others])
