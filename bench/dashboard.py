"""What the dashboard's pages cost its server with many runs: ``make bench-dashboard``.

Prints the time of each page's own work (numbers, table, charts), first and at a refresh, while scrapes go on,
and the memory over a thousand refreshes. What the browser and Streamlit's wire add is not in it.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from datetime import timezone
from pathlib import Path

import fleet
import psutil

from stallwatch_dashboard import charts
from stallwatch_dashboard.charts.base import Look, Span
from stallwatch_dashboard.pages.runs_table import table
from stallwatch_dashboard.settings import DashboardSettings
from stallwatch_dashboard.sources.embedded import Embedded
from stallwatch_dashboard.sources.exposition import Reading
from stallwatch_dashboard.sources.store import MetricStore
from stallwatch_dashboard.words import speaker

END = 1_795_000_000.0
SAY = speaker("en")


def runs_page(source: Embedded) -> None:
    """The Runs page's work."""
    table(source.rows(), source.clock(), timezone.utc, SAY)._compute()


def run_page(source: Embedded, run: str) -> None:
    """The Run page's work, charts included."""
    row, found, incidents = source.row(run), source.frames(run), source.incidents(run)
    assert row is not None and not found.nothing
    span = Span(END - 86400, source.clock(), live=True)
    for chart in charts.BOARD:
        if chart.drawable(found):
            chart.draw(found, incidents, span, Look(), SAY).to_json()


def timed(act: Callable[[], None], times: int) -> float:
    """Median seconds."""
    took = []
    for _ in range(times):
        began = time.perf_counter()
        act()
        took.append(time.perf_counter() - began)
    return statistics.median(took)


def scrape(store: MetricStore, runs: int, ranks: int, at: float) -> None:
    """Another scrape of every run's step and its ranks' steps."""
    step = (at - END) + 50_000
    readings = [Reading(f"run-{run:03}", "stallwatch_step", None, "", step) for run in range(runs)]
    readings += [
        Reading(f"run-{run:03}", "stallwatch_rank_step", rank, "", step)
        for run in range(runs)
        for rank in range(ranks)
    ]
    store.write(readings, at)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--hours", type=float, default=24.0)
    parser.add_argument("--every", type=float, default=60.0, help="seconds between the points of a series")
    parser.add_argument("--refreshes", type=int, default=1000, help="for the memory")
    told = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="stallwatch-bench-") as folder:
        home = Path(folder)
        began = time.perf_counter()
        points = fleet.make(
            home / "metrics.duckdb",
            runs=told.runs,
            ranks=told.ranks,
            hours=told.hours,
            every=told.every,
            end=END,
        )
        size = (home / "metrics.duckdb").stat().st_size
        print(
            f"{told.runs} runs × {told.ranks} ranks × {told.hours:g} h: {points:,} points, {size >> 20} MiB,"
        )
        print(f"  generated in {time.perf_counter() - began:.0f} s")
        clock = [END]
        began = time.perf_counter()
        source = Embedded(DashboardSettings(home=home), clock=lambda: clock[0])
        print(f"{'the store is opened':40} {1000 * (time.perf_counter() - began):8.0f} ms")
        assert isinstance(source.store, MetricStore)
        print(f"{'Runs page, first':40} {1000 * timed(lambda: runs_page(source), 1):8.0f} ms")
        print(
            f"{'Runs page, refresh (median of 20)':40} {1000 * timed(lambda: runs_page(source), 20):8.0f} ms"
        )
        print(f"{'Run page, first':40} {1000 * timed(lambda: run_page(source, 'run-007'), 1):8.0f} ms")
        refresh = timed(lambda: run_page(source, "run-007"), 10)
        print(f"{'Run page, refresh (median of 10)':40} {1000 * refresh:8.0f} ms")
        process = psutil.Process()
        sizes = []
        for number in range(told.refreshes):
            clock[0] += 2.0
            if number % 50 == 0:
                scrape(source.store, told.runs, told.ranks, clock[0])
                sizes.append(process.memory_info().rss >> 20)
            runs_page(source)
        early, late = statistics.median(sizes[2:6] or sizes), statistics.median(sizes[-4:])
        print(f"memory over {told.refreshes:,} refreshes: {early:.0f} MiB → {late:.0f} MiB")
        source.close()


if __name__ == "__main__":
    main()
