"""What the pages ask of a store of numbers, whichever keeps them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import pandas as pd

from stallwatch_dashboard.overview import Numbers


class NumberStore(Protocol):
    """The embedded store, or Prometheus. Times are Unix seconds."""

    @property
    def problem(self) -> str | None:
        """Why numbers are missing, for the page."""

    def series(
        self, run: str, metric: str, *, since: float | None = None, points: int = 1200
    ) -> pd.DataFrame:
        """One metric of one run as columns ``rank, labels, t, v``; about `points` rows at most."""

    def latest(self, run: str, metric: str) -> dict[tuple[int | None, str], float]:
        """Newest value by rank and remaining labels."""

    def glances(self, runs: Iterable[str], now: float) -> dict[str, Numbers]:
        """What a row tells of each of these runs."""

    def last_seen(self) -> dict[str, float]:
        """When each run was last heard of."""

    def first_seen(self, run: str) -> float | None:
        """The time of the run's oldest number."""

    def close(self) -> None:
        """Let go of files and connections."""
