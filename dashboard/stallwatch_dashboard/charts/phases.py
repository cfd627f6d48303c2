"""What the run did when: one band, a colour and a name for each phase."""

from __future__ import annotations

from collections.abc import Sequence

from stallwatch_dashboard import theme
from stallwatch_dashboard.charts.base import Look, Span, figure
from stallwatch_dashboard.charts.drawing import Drawing
from stallwatch_dashboard.data.frames import RunFrames
from stallwatch_dashboard.words import Say
from stallwatch_exporter.incident import Incident

#: Told apart with any colour vision; training, which is most of the time, is the quiet one.
COLOURS = {
    "train": theme.SKY,
    "init": "#8A949E",
    "eval": theme.GREEN,
    "save": theme.PURPLE,
    "rollout": theme.ORANGE,
    "weight-sync": theme.YELLOW,
    "idle": "#C5CDD5",
}
_HEIGHT = 110


def draw(found: RunFrames, incidents: Sequence[Incident], span: Span, look: Look, say: Say) -> Drawing:
    """The band. A phase lasts until the next one begins, the last one until the end of what is shown."""
    chart = figure(look, span, incidents, say)
    if not found.phases:
        return chart
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
            base=[look.time(begin) for begin, _ in spans],
            x=[look.time(end - begin) for begin, end in spans],
            y=[""] * len(spans),
            customdata=[end - begin for begin, end in spans],
            orientation="h",
            name=say(f"phase_{phase}"),
            marker={"color": colour, "line": {"width": 0}},
            hovertemplate="%{customdata:.0f} s",
            width=1,
        )
    chart.layout |= {"height": _HEIGHT, "barmode": "overlay", "bargap": 0, "hovermode": "closest"}
    chart.set("yaxis", visible=False, range=[-0.5, 0.5])
    return chart
