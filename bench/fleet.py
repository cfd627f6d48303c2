"""Use DuckDB to generate a day of metrics for many runs, in the format and order of the embedded store."""

from __future__ import annotations

import json
from pathlib import Path

import duckdb

from stallwatch_dashboard.data.scraper import Reading
from stallwatch_dashboard.data.store import MetricStore

#: Metrics of each rank and of the run, with SQL expressions for their values. In these expressions, `n` is
#: the number of the scrape, and `r` is the rank.
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
    "log_lines_total": "n * 100",
}
_LABELLED = {
    "stall_threshold_seconds": ('{"phase": "train"}', "30"),
    "phase": ('{"stallwatch_phase": "train"}', "1"),
}


_KINDS = [
    *((name, "", True, value) for name, value in _OF_RANKS.items()),
    *((name, "", False, value) for name, value in _OF_RUN.items()),
    *((name, labels, False, value) for name, (labels, value) in _LABELLED.items()),
]
_VALUE = "CASE kind " + " ".join(f"WHEN {n} THEN {value}" for n, (*_, value) in enumerate(_KINDS)) + " END"


def _places(connection: duckdb.DuckDBPyConnection, runs: int, ranks: int) -> None:
    """Create a table with a row for each time series."""
    connection.execute(
        "CREATE TEMP TABLE kinds (metric VARCHAR, labels VARCHAR, of_rank BOOLEAN, kind INTEGER)"
    )
    for number, (name, labels, of_rank, _) in enumerate(_KINDS):
        connection.execute(
            "INSERT INTO kinds VALUES (?, ?, ?, ?)", [f"stallwatch_{name}", labels, of_rank, number]
        )
    connection.execute(
        f"""
        CREATE TEMP TABLE places AS
        SELECT row_number() OVER () AS id, run, r, metric, labels, of_rank, kind
        FROM range({runs}) runs(run), kinds, range({ranks}) ranks(r) WHERE of_rank OR r = 0
        """
    )


def make(path: Path, *, runs: int, ranks: int, hours: float, every: float, end: float) -> int:
    """Write the file of the embedded store and return the number of points in the file.

    The time of the last scrape is `end`.
    """
    MetricStore(path).close()  # creates the tables
    connection = duckdb.connect(str(path), config={"threads": 2, "memory_limit": "2GB"})
    _places(connection, runs, ranks)
    connection.execute(
        "INSERT INTO series SELECT id, printf('run-%03d', run), metric,"
        " CASE WHEN of_rank THEN r END, labels FROM places"
    )
    moments = int(hours * 3600 / every)
    connection.execute("SET preserve_insertion_order = true")
    for first in range(0, moments, 60):  # write the points in parts and in chronological order
        count = min(60, moments - first)
        connection.execute(
            f"""
            INSERT INTO points
            SELECT id, t, {_VALUE}
            FROM (SELECT n, {end} - ({moments} - 1 - n) * {every} AS t
                  FROM range({first}, {first + count}) moments(n)), places
            ORDER BY t
            """
        )
    found = connection.execute("SELECT count(*) FROM points").fetchone()
    connection.close()
    return int(found[0]) if found else 0


class Scrapes:
    """All agents' responses to a day of scrapes."""

    def __init__(self, runs: int, ranks: int) -> None:
        self._connection = duckdb.connect()
        _places(self._connection, runs, ranks)

    def readings(self, number: int, at: float, run: int | None = None) -> list[Reading]:
        """Return the readings from one scrape, for all runs or for one run."""
        rows = self._connection.execute(
            "SELECT printf('run-%03d', run), metric, CASE WHEN of_rank THEN r END, labels,"
            f" CAST({_VALUE} AS DOUBLE) FROM places, (SELECT ? AS n, ? AS t) WHERE run = coalesce(?, run)",
            [number, at, run],
        ).fetchall()
        return [Reading(*row) for row in rows]


def to_openmetrics(store: Path, text: Path, *, whole: str, ranks_since: float) -> int:
    """Write points as text for ``promtool tsdb create-blocks-from openmetrics`` and return their number.

    Omit the points of single ranks up to `ranks_since`, except for the run `whole`.
    """
    connection = duckdb.connect(str(store), read_only=True, config={"threads": 1})
    (texts,) = connection.execute("SELECT list(DISTINCT labels) FROM series").fetchone() or ([],)
    connection.execute("CREATE TEMP TABLE written (labels VARCHAR, told VARCHAR)")
    for labels in texts:
        label_text = "".join(f',{name}="{value}"' for name, value in json.loads(labels or "{}").items())
        connection.execute("INSERT INTO written VALUES (?, ?)", [labels, label_text])
    connection.execute(
        f"""
        COPY (
            SELECT concat(
                metric, '{{run="', run, '"', CASE WHEN rank IS NOT NULL THEN ',rank="' || rank || '"' END,
                told, '}} ', coalesce(v, 'nan'::DOUBLE), ' ', printf('%.3f', t)
            )
            FROM points JOIN series ON series.id = series JOIN written USING (labels)
            WHERE rank IS NULL OR run = '{whole}' OR t > {ranks_since}
            ORDER BY t
        ) TO '{text}' (FORMAT csv, HEADER false, QUOTE '', ESCAPE '', DELIMITER '\x01')
        """
    )
    connection.close()
    with text.open("ab") as lines:
        lines.write(b"# EOF\n")
    with text.open("rb") as lines:
        return sum(chunk.count(b"\n") for chunk in iter(lambda: lines.read(1 << 20), b"")) - 1
