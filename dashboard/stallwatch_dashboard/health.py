"""Determine the health of the dashboard: its sources, lost records, disk space, and package versions."""

from __future__ import annotations

import platform
import shutil
from collections.abc import Collection, Iterable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal, get_args

from stallwatch_dashboard.data.frames import NumberStore
from stallwatch_dashboard.data.scraper import TargetStatus
from stallwatch_rules import __version__

LATE_SECONDS = 10.0  #: seconds without a response after which a source is late
_PACKAGES = ("streamlit", "plotly", "duckdb", "pandas", "sqlalchemy", "apprise")

SourceState = Literal["silent", "late", "answers"]


def state_of(target: TargetStatus, now: float) -> SourceState:
    lag = target.lag(now)
    return "silent" if lag is None else "late" if lag > LATE_SECONDS else "answers"


def sources_of(targets: Iterable[TargetStatus], ended: Collection[str], now: float) -> list[TargetStatus]:
    """Return the scraped endpoints, failing endpoints first. Omit agents whose run is in `ended`."""
    found = [target for target in targets if target.run is None or target.run not in ended]
    order = get_args(SourceState)
    return sorted(
        found, key=lambda target: (order.index(state_of(target, now)), target.run or "", target.url)
    )


def losses(store: NumberStore, runs: Sequence[str]) -> dict[str, int]:
    """For each run that lost records, return the number of these records, in descending order."""
    lost = {run: int(sum(store.latest(run, "stallwatch_dropped_records_total").values())) for run in runs}
    return {run: lost[run] for run in sorted(lost, key=lambda run: -lost[run]) if lost[run]}


def versions() -> dict[str, str]:
    """Return the versions of Python and of the installed packages that the pages use."""
    found = {"python": platform.python_version(), "stallwatch": __version__}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def disk(home: Path) -> tuple[int, int] | None:
    """Return the size of the stored metrics and the free disk space, in bytes.

    Return None if there is no state folder.
    """
    try:
        free = shutil.disk_usage(home).free
    except OSError:
        return None
    # The second file is the write-ahead log of DuckDB.
    files = (home / "metrics.duckdb", home / "metrics.duckdb.wal")
    return sum(map(_size, files)), free


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:  # the file is missing or was deleted meanwhile
        return 0
