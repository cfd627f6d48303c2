"""A day of many runs as the embedded store would hold it: generated in DuckDB, in the order of scraping."""

from __future__ import annotations

from pathlib import Path

import duckdb

from stallwatch_dashboard.sources.store import MetricStore

#: Metrics of each rank and of the run, with the SQL of their value: `n` is the scrape's number, `r` the rank.
_OF_RANKS = {
    "rank_step": "n * 30 - (CASE WHEN r = 5 THEN n % 7 ELSE 0 END)",
    "last_step_timestamp_seconds": "t - (n * 7 + r) % 3",
    "memory_allocated_bytes": "60e9 + r * 1e7 + (n * 31 + r) % 97 * 1e6",
}
_OF_RUN = {
    "step": "n * 30",
    "target_steps": "100000",
    "loss": "2.5 / sqrt(n + 1) + (n * 17 + run) % 13 / 100",
    "grad_norm": "1 + (n * 29 + run) % 31 / 30",
    "learning_rate": "1e-4 * least(1, n / 60)",
    "step_duration_seconds_sum": "n * 30 * 2.0",
    "step_duration_seconds_count": "n * 30",
    "trace_cache_invalidations_total": "n * 3",
    "host_memory_bytes": "4e11 + n % 50 * 1e8",
    "host_memory_limit_bytes": "1e12",
    "warnings_total": "n",
    "stalled_seconds_total": "0",
    "last_progress_timestamp_seconds": "t",
}
_LABELLED = {
    "stall_threshold_seconds": ('{"phase": "train"}', "30"),
    "phase": ('{"stallwatch_phase": "train"}', "1"),
}


def make(path: Path, *, runs: int, ranks: int, hours: float, every: float, end: float) -> int:
    """Write the file; returns how many points it holds. The last scrape is at `end`."""
    MetricStore(path).close()  # its tables
    connection = duckdb.connect(str(path), config={"threads": 2, "memory_limit": "2GB"})
    connection.execute(
        "CREATE TEMP TABLE kinds (metric VARCHAR, labels VARCHAR, of_rank BOOLEAN, kind INTEGER)"
    )
    formulas = []
    kinds = [
        *((name, "", True, value) for name, value in _OF_RANKS.items()),
        *((name, "", False, value) for name, value in _OF_RUN.items()),
        *((name, labels, False, value) for name, (labels, value) in _LABELLED.items()),
    ]
    for number, (name, labels, of_rank, value) in enumerate(kinds):
        connection.execute(
            "INSERT INTO kinds VALUES (?, ?, ?, ?)", [f"stallwatch_{name}", labels, of_rank, number]
        )
        formulas.append(f"WHEN {number} THEN {value}")
    connection.execute(
        f"""
        CREATE TEMP TABLE places AS
        SELECT row_number() OVER () AS id, run, r, metric, labels, of_rank, kind
        FROM range({runs}) runs(run), kinds, range({ranks}) ranks(r) WHERE of_rank OR r = 0
        """
    )
    connection.execute(
        "INSERT INTO series SELECT id, printf('run-%03d', run), metric,"
        " CASE WHEN of_rank THEN r END, labels FROM places"
    )
    moments = int(hours * 3600 / every)
    connection.execute("SET preserve_insertion_order = true")
    for first in range(0, moments, 60):  # a portion at a time, as time goes by
        count = min(60, moments - first)
        connection.execute(
            f"""
            INSERT INTO points
            SELECT id, t, CASE kind {" ".join(formulas)} END
            FROM (SELECT n, {end} - ({moments} - 1 - n) * {every} AS t
                  FROM range({first}, {first + count}) moments(n)), places
            ORDER BY t
            """
        )
    found = connection.execute("SELECT count(*) FROM points").fetchone()
    connection.close()
    return int(found[0]) if found else 0
