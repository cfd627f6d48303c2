"""When things happened last: progress, a checkpoint, the end; and which ranks are there at all.

Moments are published as Unix times, so that whoever reads them can tell how long ago they were, also when
nothing is published any more.
"""

from __future__ import annotations

from collections.abc import Mapping

from stallwatch_exporter import steady
from stallwatch_exporter.serving.registry import RunRegistry
from stallwatch_exporter.serving.series import Family

_RUN = ("run",)


class Milestones:
    """The gauges of one run that hold a moment, in the `registry` of its other metrics."""

    def __init__(self, run: str, registry: RunRegistry) -> None:
        self._run = run

        def gauge(name: str, text: str, labels: tuple[str, ...] = _RUN) -> Family:
            return registry.family("gauge", f"stallwatch_{name}", text, labels)

        self._progress = gauge(
            "last_progress_timestamp_seconds",
            "Unix time of the last sign of progress, against which the stall threshold is held.",
        )
        self._checkpoint = gauge(
            "last_checkpoint_timestamp_seconds", "Unix time at which the last checkpoint was done."
        )
        self._interval = gauge(
            "checkpoint_interval_seconds", "Longest time between two checkpoints of this run until now."
        )
        self._end = gauge("end_timestamp_seconds", "Unix time at which the run ended.", ("run", "ending"))
        self._rank_up = gauge(
            "rank_up", "1 while the process of a rank is there, by the probe.", ("run", "rank")
        )
        self._saved_at: float | None = None
        self._longest = 0.0

    def progressed(self, when: float) -> None:
        """The last sign of progress was at `when`."""
        self._progress.labels(self._run).set(steady.wall(when))

    def saved(self, when: float) -> None:
        """A checkpoint was done at `when`."""
        if self._saved_at is not None and when > self._saved_at:
            self._longest = max(self._longest, when - self._saved_at)
            self._interval.labels(self._run).set(self._longest)
        self._saved_at = when
        self._checkpoint.labels(self._run).set(steady.wall(when))

    def ended(self, when: float, ending: str) -> None:
        """The run ended, or nobody watches it any more (``unknown``)."""
        self._end.labels(self._run, ending).set(steady.wall(when))

    def ranks(self, up: Mapping[int, object]) -> None:
        """Each known rank, with something true while a process of it is there."""
        for rank, alive in up.items():
            self._rank_up.labels(self._run, str(rank)).set(1 if alive else 0)
