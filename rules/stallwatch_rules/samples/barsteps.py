"""The step of a line that tells a loss and no step, by the progress bar beside it.

transformers' Trainer prints ``{'loss': …}`` without a step and draws a tqdm bar of its steps around it
(transformers 4.57, ``trainer_callback.py``: ``ProgressCallback.on_log``). The bar that stands last before the
line, in the same line or just above, tells the step, unless it is shorter than another one was: then it is an
evaluation's, drawn inside of the training. An evaluation's bar may be the longer one: a bar as long as that
beside the first loss is the training's in any case.
"""

from __future__ import annotations

from typing import NamedTuple

NEAR = 2  #: lines between the bar and the loss


class Drawn(NamedTuple):
    """The last drawing of a bar."""

    line: int
    step: int
    total: int


class BarSteps:
    """The bars of one source, by the rank that draws them."""

    def __init__(self) -> None:
        self.last: dict[int | None, Drawn] = {}
        self.longest: dict[int | None, int] = {}
        self.trained: dict[int | None, int] = {}  #: the total of the bar beside the first loss

    def see(self, rank: int | None, bar: Drawn) -> None:
        """Take the last drawing of its line."""
        self.last[rank] = bar
        self.longest[rank] = max(bar.total, self.longest.get(rank, 0))

    def at(self, rank: int | None, line: int) -> Drawn | None:
        """The training's bar beside a line, if there is one."""
        bar = self.last.get(rank)
        if bar is None or line - bar.line > NEAR:
            return None
        if bar.total >= self.longest[rank]:
            self.trained.setdefault(rank, bar.total)
        elif bar.total != self.trained.get(rank):
            return None
        return bar
