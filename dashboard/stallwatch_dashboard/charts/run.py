"""The charts of the Run page, in their order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pandas as pd

from stallwatch_dashboard import formats, theme
from stallwatch_dashboard.charts.base import (
    Drawing,
    Span,
    figure,
    line,
    milliseconds,
    note,
    per_rank,
)
from stallwatch_dashboard.charts.lag import draw_lag, folded_rows, rows_of_host
from stallwatch_dashboard.data.frames import RunFrames
from stallwatch_dashboard.theme import Look
from stallwatch_dashboard.words import Say
from stallwatch_exporter.incident import Incident

Fill = Callable[[Drawing, RunFrames, Span, Look, Say], None]

_GIB, _MIB = 1024**3, 1024**2
_SECONDS = "%{y:.3g} s"
_BAND_PIXELS = 110
#: Phases, told apart with any colour vision; training, which is most of the time, is the quiet one.
COLOURS = {
    "train": theme.SKY,
    "init": "#8A949E",
    "eval": theme.GREEN,
    "save": theme.PURPLE,
    "rollout": theme.ORANGE,
    "weight-sync": theme.YELLOW,
    "idle": "#C5CDD5",
}


@dataclass(frozen=True)
class Chart:
    key: str
    title: str  #: the key of its words
    needs: tuple[str, ...]  #: frames of which one at least must have rows
    fill: Fill = lambda *_: None

    def drawable(self, found: RunFrames) -> bool:
        return any(len(getattr(found, name)) for name in self.needs)

    def draw(
        self, found: RunFrames, incidents: Sequence[Incident], span: Span, look: Look, say: Say
    ) -> Drawing:
        chart = figure(look, span, incidents, say)
        self.fill(chart, found, span, look, say)
        return chart


@dataclass(frozen=True)
class LagChart(Chart):
    """The map of ranks that are behind: a row for each host if the run has several, else for each rank."""

    host: str = ""  #: of a run over several: the one whose ranks have rows

    def draw(
        self, found: RunFrames, incidents: Sequence[Incident], span: Span, look: Look, say: Say
    ) -> Drawing:
        rows = rows_of_host(found, self.host) if self.host else folded_rows(found)
        return draw_lag(found, rows, incidents, span, look, say)


def _progress(chart: Drawing, found: RunFrames, _span: Span, look: Look, say: Say) -> None:
    """A stall under trace-cache invalidations: one line climbs while the other stops.

    Steps are on the left axis, invalidations on the right, told apart by colour and by dashes.
    """
    line(chart, found.steps, say("steps_reached"), look.blue, "%{y:,}", stepped=True, width=3)
    name = say("invalidations_so_far")
    line(chart, found.invalidations, name, look.red, "%{y:,}", stepped=True, dash="dot", axis="y2")
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


def _highest(found: RunFrames) -> float:
    return 1.0 if found.invalidations.empty else float(found.invalidations["v"].max()) or 1.0


def _in(colour: str, title: str, standoff: int) -> dict[str, object]:
    named = {"text": title, "font": {"color": colour}, "standoff": standoff}
    return {"title": named, "tickfont": {"color": colour}}


def _step_time(chart: Drawing, found: RunFrames, span: Span, look: Look, say: Say) -> None:
    """Seconds of each step against the stall threshold; while a run waits, how long the open step takes."""
    per_rank(chart, found.step_seconds, look, say, _SECONDS, name=say("step_time"))
    waited = _waited(found, span)
    highest = top(found, waited)
    # The generous threshold of the start would be a line that falls from out of the picture.
    limits = found.threshold.assign(v=found.threshold["v"].where(found.threshold["v"] <= highest))
    line(chart, limits, say("stall_threshold"), look.grey, _SECONDS, dash="dash", stepped=True)
    if not found.threshold.empty and (limit := float(found.threshold["v"].iloc[-1])) > highest:
        # In words: so far above the steps, its line would press them flat.
        words = say("threshold_above", formats.seconds(limit))
        corner = {"xref": "paper", "x": 1, "xanchor": "right", "yanchor": "top"}
        chart.layout["annotations"] += [note(words, look.grey, **corner)]
    if waited:
        open_step = pd.DataFrame({"t": [span.end - waited, span.end], "v": [0.0, waited]})
        line(chart, open_step, say("since_last_step"), look.red, _SECONDS, dash="dot")
    chart.set("yaxis", ticksuffix=" s", range=[0, highest])


def top(found: RunFrames, waited: float) -> float:
    """High enough for the steps and today's threshold; the generous one of the start goes off the top."""
    slowest = float(found.step_seconds["v"].max()) if not found.step_seconds.empty else 0.0
    limit = float(found.threshold["v"].iloc[-1]) if not found.threshold.empty else 0.0
    shown = max(slowest, waited)
    return 1.1 * (max(shown, limit) if limit <= 20 * shown else shown) or 1.0


def _waited(found: RunFrames, span: Span) -> float:
    """Seconds since the last step of a run that is heard of."""
    if not span.live or span.heard is not None or not found.last_step_at:
        return 0.0
    return max(0.0, span.end - found.last_step_at)


def _of_ranks(name: str, hover: str, **axis: str) -> Chart:
    """A number that each rank may have; a NaN leaves a gap."""

    def fill(chart: Drawing, found: RunFrames, _span: Span, look: Look, say: Say) -> None:
        per_rank(chart, getattr(found, name), look, say, hover, name=say(name))
        chart.set("yaxis", **axis)

    return Chart(name, name, (name,), fill)


def _memory(chart: Drawing, found: RunFrames, _span: Span, look: Look, say: Say) -> None:
    """Per rank, or of all processes where the log tells nothing of the accelerator's."""
    unit, size = ("GiB", _GIB) if found.memory["v"].max() >= _GIB else ("MiB", _MIB)
    scaled = found.memory.assign(v=found.memory["v"] / size)
    per_rank(chart, scaled, look, say, f"%{{y:.3g}} {unit}", name=say(found.memory_kind or "allocated"))
    chart.set("yaxis", ticksuffix=f" {unit}")


def _warnings(chart: Drawing, found: RunFrames, _span: Span, look: Look, say: Say) -> None:
    line(chart, found.warnings, say("warnings_so_far"), look.cycle[1], "%{y:,}", stepped=True)


def _phases(chart: Drawing, found: RunFrames, span: Span, _look: Look, say: Say) -> None:
    """The band. A phase lasts until the next one begins, the last one until the end of what is shown."""
    if not found.phases:
        return
    ends = [time for time, _ in found.phases[1:]] + [max(span.seen, found.phases[-1][0])]
    for phase, colour in COLOURS.items():
        spans = [
            (begin, end)
            for (begin, name), end in zip(found.phases, ends, strict=True)
            if name == phase and end > begin
        ]
        if not spans:
            continue
        chart.add(
            type="bar",
            base=[milliseconds(begin) for begin, _ in spans],
            x=[milliseconds(end - begin) for begin, end in spans],
            y=[""] * len(spans),
            customdata=[end - begin for begin, end in spans],
            orientation="h",
            name=say(f"phase_{phase}"),
            marker={"color": colour, "line": {"width": 0}},
            hovertemplate="%{customdata:.0f} s",
            width=1,
        )
    chart.layout |= {"height": _BAND_PIXELS, "barmode": "overlay", "bargap": 0, "hovermode": "closest"}
    chart.set("yaxis", visible=False, range=[-0.5, 0.5])


BOARD = (
    Chart("progress", "chart_progress", ("steps", "invalidations"), _progress),
    Chart("step_time", "chart_step_time", ("step_seconds", "steps"), _step_time),
    _of_ranks("loss", "%{y:.4g}", rangemode="normal"),
    _of_ranks("grad_norm", "%{y:.4g}"),
    _of_ranks("learning_rate", "%{y:.3e}", exponentformat="e", showexponent="all"),
    Chart("memory", "memory", ("memory",), _memory),
    Chart("warnings", "warnings", ("warnings",), _warnings),
    Chart("phases", "phases", ("phases",), _phases),
    LagChart("lag", "chart_lag", ("rank_steps",)),
)
#: Charts that take the whole width. They need a probe in the ranks: without one, they are not missed.
WIDE = ("phases", "lag", "lag_ranks")


def ranks_of_host(host: str) -> Chart:
    """Return the chart that is drawn below the map of hosts, for the host that the reader opened."""
    return LagChart("lag_ranks", "chart_lag_ranks", ("rank_steps",), host=host)
