"""How many warnings the run has printed so far."""

from __future__ import annotations

from collections.abc import Sequence

from stallwatch_dashboard.charts.base import Look, Span, figure
from stallwatch_dashboard.charts.drawing import Drawing
from stallwatch_dashboard.charts.traces import line
from stallwatch_dashboard.data.frames import RunFrames
from stallwatch_dashboard.words import Say
from stallwatch_exporter.incident import Incident


def draw(found: RunFrames, incidents: Sequence[Incident], span: Span, look: Look, say: Say) -> Drawing:
    """The chart."""
    chart = figure(look, span, incidents, say)
    line(chart, found.warnings, look, say("warnings_so_far"), look.cycle[1], "%{y:,}", stepped=True)
    return chart
