"""Define the charts on the Run page, in display order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import pandas as pd

from stallwatch_dashboard import theme
from stallwatch_dashboard.charts.base import (
    Drawing,
    Scene,
    Span,
    figure,
    line,
    milliseconds,
    note,
    number_axis,
    per_rank,
)
from stallwatch_dashboard.charts.lag import draw_lag
from stallwatch_dashboard.data.frames import RunFrames
from stallwatch_dashboard.data.overview import began
from stallwatch_dashboard.theme import Look
from stallwatch_dashboard.words import Say, Seconds
from stallwatch_exporter.incident import Incident

_GIB, _MIB = 1024**3, 1024**2
_SECONDS = "%{y:.3g} s"
_BAND_PIXELS = 110
#: Colors of the phases. They are distinguishable with any color vision. Training, the longest phase, has an
#: unobtrusive color.
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
    title: str  #: key of the title's text
    needs: tuple[str, ...]  #: names of frames; at least one must have rows
    fill: Callable[[Drawing, Scene], None]

    def drawable(self, found: RunFrames) -> bool:
        return any(len(getattr(found, name)) for name in self.needs)

    def draw(
        self, found: RunFrames, incidents: Sequence[Incident], span: Span, look: Look, say: Say
    ) -> Drawing:
        chart = figure(look, span, incidents, say)
        self.fill(chart, Scene(found, incidents, span, look, say))
        return chart


def _progress(chart: Drawing, scene: Scene) -> None:
    """Draw the steps and the trace-cache invalidations in one chart.

    During a stall, invalidations can rise although the steps have stopped. Steps use the left axis, and
    invalidations use the right axis. The lines differ in color and dashes.
    """
    found, look, say = scene.found, scene.look, scene.say
    line(chart, found.steps, say("steps_reached"), look.blue, "%{y:,}", stepped=True, width=3)
    name = say("invalidations_so_far")
    line(chart, found.invalidations, name, look.red, "%{y:,}", stepped=True, dash="dot", axis="y2")
    right = {
        "overlaying": "y",
        "side": "right",
        "showgrid": False,
        "ticks": "",
        "zeroline": False,
        # The additional headroom keeps the two lines apart when both are flat.
        "range": [0, 1.35 * (float(found.invalidations["v"].max()) or 1.0)],
        "nticks": 5,
        "tickmode": "auto",
        "automargin": False,
        "fixedrange": True,
    }
    chart.set("margin", r=62)
    chart.set("yaxis", **_in(look.blue, say("step"), 4))
    chart.set("yaxis2", **right, **_in(look.red, say("invalidations"), 15))


def _in(colour: str, title: str, standoff: int) -> dict[str, object]:
    named = {"text": title, "font": {"color": colour}, "standoff": standoff}
    return {"title": named, "tickfont": {"color": colour}}


def _step_time(chart: Drawing, scene: Scene) -> None:
    """Draw the duration of each step and the stall threshold.

    For a live run, also draw the time since the last step.
    """
    found, span, look, say = scene.found, scene.span, scene.look, scene.say
    per_rank(chart, found.step_seconds, look, say, _SECONDS, name=say("step_time"))
    waited = _waited(found, span)
    highest = top(found, waited)
    # The threshold is high at the start of a run. Without this limit, the threshold's line would enter the
    # chart from above.
    limits = found.threshold.assign(v=found.threshold["v"].where(found.threshold["v"] <= highest))
    line(chart, limits, say("stall_threshold"), look.grey, _SECONDS, dash="dash", stepped=True)
    if not found.threshold.empty and (limit := float(found.threshold["v"].iloc[-1])) > highest:
        # A line for such a high threshold would flatten the line of steps, so the threshold is shown as text.
        words = say("threshold_above", Seconds(limit))
        corner = {"xref": "paper", "x": 1, "xanchor": "right", "yanchor": "top"}
        chart.layout["annotations"] += [note(words, look.grey, **corner)]
    if waited:
        open_step = pd.DataFrame({"t": [span.end - waited, span.end], "v": [0.0, waited]})
        line(chart, open_step, say("since_last_step"), look.red, _SECONDS, dash="dot")
    chart.set("yaxis", ticksuffix=" s", range=[0, highest])


def top(found: RunFrames, waited: float) -> float:
    """Return the upper end of the axis for step times.

    The axis includes all steps. It also includes the last threshold, unless the threshold is more than 20
    times as long as both the slowest step and the current wait.
    """
    slowest = float(found.step_seconds["v"].max()) if not found.step_seconds.empty else 0.0
    limit = float(found.threshold["v"].iloc[-1]) if not found.threshold.empty else 0.0
    shown = max(slowest, waited)
    return 1.1 * (max(shown, limit) if limit <= 20 * shown else shown) or 1.0


def _waited(found: RunFrames, span: Span) -> float:
    """Return the seconds since the last step of a live run, or 0 if the run is silent or not live."""
    if not span.live or span.seen_at is not None or not found.last_step_at:
        return 0.0
    return max(0.0, span.end - found.last_step_at)


def _of_ranks(name: str, hover: str, *, from_zero: bool = True) -> Chart:
    """Return the chart of a metric that each rank can report. A NaN leaves a gap in the rank's line."""

    def fill(chart: Drawing, scene: Scene) -> None:
        frame = getattr(scene.found, name)
        per_rank(chart, frame, scene.look, scene.say, hover, name=scene.say(name))
        number_axis(chart, from_zero=from_zero)

    return Chart(name, name, (name,), fill)


def _memory(chart: Drawing, scene: Scene) -> None:
    """Draw the accelerator memory of each rank. If this is unknown, draw the host memory of all processes."""
    found, say = scene.found, scene.say
    unit, size = ("GiB", _GIB) if found.memory["v"].max() >= _GIB else ("MiB", _MIB)
    scaled = found.memory.assign(v=found.memory["v"] / size)
    name = say(found.memory_kind or "allocated")
    per_rank(chart, scaled, scene.look, say, f"%{{y:.3g}} {unit}", name=name)
    chart.set("yaxis", ticksuffix=f" {unit}")


def _warnings(chart: Drawing, scene: Scene) -> None:
    name = scene.say("warnings_so_far")
    line(chart, scene.found.warnings, name, scene.look.cycle[1], "%{y:,}", stepped=True)


def _phases(chart: Drawing, scene: Scene) -> None:
    """Draw the phases as a band. Stalls are drawn over it, because no phase continues during a stall."""
    phases, span, say = scene.found.phases, scene.span, scene.say
    if not phases:
        return
    ends = [time for time, _ in phases[1:]] + [max(span.seen, phases[-1][0])]
    for phase, colour in COLOURS.items():
        spans = [
            (begin, end)
            for (begin, name), end in zip(phases, ends, strict=True)
            if name == phase and end > begin
        ]
        _bars(chart, spans, say(f"phase_{phase}"), colour)
    chart.layout |= {"height": _BAND_PIXELS, "barmode": "overlay", "bargap": 0, "hovermode": "closest"}
    chart.layout["legend"] |= {"y": 1.4}  # above the incidents' names, because this chart is short
    chart.set("yaxis", visible=False, range=[-0.5, 0.5])
    stalls = [incident for incident in scene.incidents if incident.kind == "stall"]
    spans = [(began(stall), stall.resolved_at or max(span.seen, began(stall))) for stall in stalls]
    _bars(chart, spans, say("stalled"), theme.VERMILLION)


def _bars(chart: Drawing, spans: Sequence[tuple[float, float]], name: str, colour: str) -> None:
    if not spans:
        return
    chart.add(
        type="bar",
        base=[milliseconds(begin) for begin, _ in spans],
        x=[milliseconds(end - begin) for begin, end in spans],
        y=[""] * len(spans),
        customdata=[end - begin for begin, end in spans],
        orientation="h",
        name=name,
        marker={"color": colour, "line": {"width": 0}},
        hovertemplate="%{customdata:.0f} s",
        width=1,
    )


BOARD = (
    Chart("progress", "chart_progress", ("invalidations",), _progress),
    Chart("step_time", "chart_step_time", ("step_seconds", "steps"), _step_time),
    _of_ranks("loss", "%{y:.4g}", from_zero=False),
    _of_ranks("grad_norm", "%{y:.4g}"),
    _of_ranks("learning_rate", "%{y:.3e}"),
    Chart("memory", "memory", ("memory",), _memory),
    Chart("warnings", "warnings", ("warnings",), _warnings),
    Chart("phases", "phases", ("phases",), _phases),
    Chart("lag", "chart_lag", ("rank_steps",), draw_lag),
)
WIDE = ("phases", "lag", "lag_ranks")  #: charts that use the full width of the page

#: Charts that require DeepSpeed or a probe in the ranks. If they have no data, the page does not list them
#: as missing.
OPTIONAL = (*WIDE, "progress")


def ranks_of_host(host: str) -> Chart:
    """Return the heat map of one host's ranks. The page shows it after the heat map of all hosts."""
    return Chart("lag_ranks", "chart_lag_ranks", ("rank_steps",), partial(draw_lag, host=host))
