"""With many runs, measure the load that the dashboard's pages put on their server: ``make bench-dashboard``.

First, Chromium opens the pages of the real dashboard, and the benchmark prints the time until each page is
usable. Then the benchmark measures the time that each page itself needs for its metrics, table, and charts,
for the first view and for a refresh after another scrape. It also measures the memory during a thousand
refreshes of both pages. All these measurements use the embedded store first, and then a Prometheus that
contains the same history. The times are the processor time of this process, with the elapsed time in
parentheses. Finally, the benchmark compares the diagnosis of an upload with ``stallwatch diagnose``.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from datetime import timezone
from pathlib import Path

import dashboard_browser
import dashboard_upload
import fleet
import psutil
from dashboard_prometheus import PROMETHEUS, PROMTOOL, imported, serving

from stallwatch_dashboard.charts.base import Span
from stallwatch_dashboard.charts.run import BOARD
from stallwatch_dashboard.data.source import Source
from stallwatch_dashboard.data.store import MetricStore
from stallwatch_dashboard.pages.runs_table import table
from stallwatch_dashboard.settings import DashboardSettings
from stallwatch_dashboard.theme import LIGHT
from stallwatch_dashboard.words import Reader
from stallwatch_exporter.runs.runfolder import RunFolder

#: End of the history. This time is in the future, so the real dashboard shows every run as running.
END = float(int(time.time()) + 2400)
SAY = Reader("en").say
RUN = 7  # the run whose page is measured
NAME = f"run-{RUN:03}"


def runs_page(source: Source) -> None:
    """Compute the table on the Runs page."""
    json.dumps(table(source.rows(), Reader(zone=timezone.utc, now=source.clock())))


def run_page(source: Source, begin: float) -> None:
    """Compute the content of the Run page, including its charts."""
    row, found, incidents = source.row(NAME), source.frames(NAME), source.incidents(NAME)
    assert row is not None and not found.nothing, source.problem
    source.run_names()
    span = Span(begin, source.clock(), live=True)
    for chart in BOARD:
        if chart.drawable(found):
            chart.draw(found, incidents, span, LIGHT, SAY).to_json()


def timed(act: Callable[[], None], times: int = 1, before: Callable[[], None] = lambda: None) -> str:
    """Return the median processor time of this process and the median elapsed time for a function."""
    took = []
    for _ in range(times):
        before()
        began = time.process_time(), time.perf_counter()
        act()
        took.append((time.process_time() - began[0], time.perf_counter() - began[1]))
    used, passed = (1000 * statistics.median(times) for times in zip(*took, strict=True))
    return f"{used:8.0f} ms ({passed:,.0f} ms)"


def pages(source: Source, begin: float, before: Callable[[], None]) -> None:
    """Print the times for the Runs page and for the Run page."""
    print(f"  {'Runs page, first':36} {timed(lambda: runs_page(source))}")
    print(f"  {'Runs page, refresh (median of 20)':36} {timed(lambda: runs_page(source), 20, before)}")
    print(f"  {'Run page, first':36} {timed(lambda: run_page(source, begin))}")
    print(f"  {'Run page, refresh (median of 20)':36} {timed(lambda: run_page(source, begin), 20, before)}")


def refreshed(source: Source, begin: float, times: int, before: Callable[[], None]) -> None:
    """Print the memory use during `times` refreshes of both pages."""
    process, sizes = psutil.Process(), []
    for number in range(times):
        before()
        if number % 25 == 0:
            sizes.append(process.memory_info().rss >> 20)
        runs_page(source)
        run_page(source, begin)
    sizes.append(process.memory_info().rss >> 20)
    early, late = statistics.median(sizes[len(sizes) // 5 :][:4]), statistics.median(sizes[-4:])
    print(f"  memory during {times:,} refreshes of both pages: {early:.0f} MiB → {late:.0f} MiB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--hours", type=float, default=24.0)
    parser.add_argument("--every", type=float, default=60.0, help="seconds between the points of a series")
    parser.add_argument(
        "--refreshes", type=int, default=1000, help="number of refreshes for the measurement of memory"
    )
    parser.add_argument("--no-prometheus", action="store_true")
    parser.add_argument("--upload-mb", type=int, default=200, help="size of the upload in MB (0 skips it)")
    options = parser.parse_args()
    if options.runs <= RUN:
        parser.error(f"--runs must be at least {RUN + 1}")
    with tempfile.TemporaryDirectory(prefix="stallwatch-bench-") as folder:
        numbers(Path(folder), options)
    if options.upload_mb:
        dashboard_upload.compare(options.upload_mb)


def numbers(home: Path, options: argparse.Namespace) -> None:
    """Print the measurements for the embedded store and for Prometheus."""
    file, began = home / "metrics.duckdb", time.perf_counter()
    begin = END - options.hours * 3600
    points = fleet.make(
        file, runs=options.runs, ranks=options.ranks, hours=options.hours, every=options.every, end=END
    )
    for number in range(options.runs):
        RunFolder.create(f"run-{number:03}", ["python", "train.py"], home=home, now=begin + options.every)
    print(
        f"{options.runs} runs × {options.ranks} ranks × {options.hours:g} h: {points:,} points, generated in"
    )
    print(f"  {time.perf_counter() - began:.0f} s. The embedded store has {file.stat().st_size >> 20} MiB:")
    dashboard_browser.visits(home, NAME)
    clock, moments = [END], int(options.hours * 3600 / options.every)
    began = time.perf_counter()
    source = Source(DashboardSettings(home=home), clock=lambda: clock[0])
    print(f"  {'opening the store':36} {1000 * (time.perf_counter() - began):8.0f} ms")
    store, scrapes = source.store, fleet.Scrapes(options.runs, options.ranks)
    assert isinstance(store, MetricStore)

    def scraped(run: int | None = RUN) -> None:
        clock[0] += 2.0
        number = moments + int((clock[0] - END) / 2)
        store.write(scrapes.readings(number, clock[0], run), clock[0])

    pages(source, begin, scraped)
    every = timed(lambda: scraped(None), 3)
    print(f"  {'writing a scrape of all runs':36} {every}")
    refreshed(source, begin, options.refreshes, scraped)
    source.close()
    if options.no_prometheus or not (PROMETHEUS and PROMTOOL):
        print("Prometheus is not measured" if options.no_prometheus else "prometheus or promtool is missing")
        return
    began = time.perf_counter()
    file.unlink()
    fleet.make(
        file, runs=options.runs, ranks=options.ranks, hours=options.hours, every=options.every, end=END
    )
    samples = imported(file, home, whole=NAME, ranks_since=END - 3600, hours=options.hours)
    print(f"Prometheus, {samples:,} samples of the same data (only one hour for the ranks of other runs),")
    print(f"  imported in {time.perf_counter() - began:.0f} s:")
    with serving(home) as (url, server):
        dashboard_browser.visits(home, NAME, STALLWATCH_DASHBOARD_PROMETHEUS_URL=url)
        querying = Source(DashboardSettings(home=home, prometheus_url=url), clock=lambda: clock[0])
        clock[0] = END

        def later() -> None:
            clock[0] += 2.0 if clock[0] < END + 60 else -60.0  # go back a minute at the end of the history

        before = sum(server.cpu_times()[:2])
        pages(querying, begin, later)
        print(f"  processor time of the server for these pages: {sum(server.cpu_times()[:2]) - before:.1f} s")
        refreshed(querying, begin, max(1, options.refreshes // 10), later)
        querying.close()


if __name__ == "__main__":
    main()
