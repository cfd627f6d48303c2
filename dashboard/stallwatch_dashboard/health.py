"""How well this dashboard itself can see: its sources, what they lost, its disk and its versions."""

from __future__ import annotations

import platform
import shutil
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal

from stallwatch_dashboard.data.frames import NumberStore
from stallwatch_dashboard.data.scraper import TargetStatus
from stallwatch_rules.messages import Text

LATE_SECONDS = 10.0  #: without an answer for so long, what a source shows is old news
_PACKAGES = ("stallwatch", "streamlit", "plotly", "duckdb", "pandas", "sqlalchemy", "apprise")

SourceState = Literal["answers", "late", "silent"]


@dataclass(frozen=True)
class Source:
    """One endpoint that is scraped."""

    url: str
    run: str
    state: SourceState
    lag: float | None  #: seconds since its last answer
    scrapes: int
    failures: int
    error: Text


@dataclass(frozen=True)
class Lost:
    """What a run's agent could not keep."""

    run: str
    records: int  #: of the probe's rings and side files


def sources_of(targets: Iterable[TargetStatus], ended: Collection[str], now: float) -> list[Source]:
    """Every endpoint that should answer, those in trouble first; the agents of `ended` runs need not."""
    order: dict[SourceState, int] = {"silent": 0, "late": 1, "answers": 2}
    found = [_source(target, now) for target in targets if target.run is None or target.run not in ended]
    return sorted(found, key=lambda source: (order[source.state], source.run, source.url))


def _source(target: TargetStatus, now: float) -> Source:
    lag = None if target.answered is None else now - target.answered
    state: SourceState = "silent" if lag is None else "late" if lag > LATE_SECONDS else "answers"
    return Source(
        target.url, target.run or "", state, lag, target.scrapes, target.failures, target.error or ""
    )


def losses(store: NumberStore, runs: Sequence[str]) -> list[Lost]:
    """The runs that lost records, the most first; none where nothing was lost."""
    found = []
    for run in runs:
        records = sum(store.latest(run, "stallwatch_dropped_records_total").values())
        if records:
            found.append(Lost(run, int(records)))
    return sorted(found, key=lambda lost: -lost.records)


def versions() -> dict[str, str]:
    """Of Python and the packages that the pages are made with; those that are not installed are left out."""
    found = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


@dataclass(frozen=True)
class Disk:
    """Where state is kept. Bytes."""

    home: Path
    free: int
    store: int  #: of the numbers


def disk(home: Path) -> Disk | None:
    """The state folder's disk; ``None`` where there is no such folder yet."""
    try:
        free = shutil.disk_usage(home).free
    except OSError:
        return None
    # The second is DuckDB's log of what is not in the first yet.
    files = (home / "metrics.duckdb", home / "metrics.duckdb.wal")
    return Disk(home, free, sum(map(_size, files)))


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:  # not there, or gone by now
        return 0
