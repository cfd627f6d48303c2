"""The charts of the Run page, in their order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from stallwatch_dashboard.charts import gradients, lag, loss, memory, phases, progress, step_time, warnings
from stallwatch_dashboard.charts.base import Look, Span
from stallwatch_dashboard.charts.drawing import Drawing
from stallwatch_dashboard.data.frames import RunFrames
from stallwatch_dashboard.words import Say
from stallwatch_exporter.incident import Incident

Draw = Callable[[RunFrames, Sequence[Incident], Span, Look, Say], Drawing]


@dataclass(frozen=True)
class Chart:
    """One chart of the board."""

    key: str
    title: str  #: the key of its words
    needs: tuple[str, ...]  #: frames of which one at least must have rows
    draw: Draw

    def drawable(self, found: RunFrames) -> bool:
        """Whether there is anything to draw."""
        return any(len(getattr(found, name)) for name in self.needs)


BOARD = (
    Chart("progress", "chart_progress", ("steps", "invalidations"), progress.draw),
    Chart("step_time", "chart_step_time", ("step_seconds", "steps"), step_time.draw),
    Chart("loss", "loss", ("loss",), loss.draw),
    Chart("grad_norm", "grad_norm", ("grad_norm",), gradients.draw_norm),
    Chart("learning_rate", "learning_rate", ("learning_rate",), gradients.draw_rate),
    Chart("memory", "memory", ("memory",), memory.draw),
    Chart("warnings", "warnings", ("warnings",), warnings.draw),
    Chart("phases", "phases", ("phases",), phases.draw),
    Chart("lag", "chart_lag", ("rank_steps",), lag.draw),
)
#: Charts that take the whole width. They need a probe in the ranks: without one, they are not missed.
WIDE = ("phases", "lag")
