"""Write samples into a CSV or a Parquet file."""

from __future__ import annotations

import csv
import importlib.util
import io
import math
import os
import warnings
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, BinaryIO

from stallwatch_exporter.sampling.rows import Sampling
from stallwatch_rules.samples.table import COLUMNS, FIELDS, Row
from stallwatch_rules.text.controls import for_spreadsheet

EXTRA = "pip install 'stallwatch[samples]'"


class MissingLibrary(Exception):
    """A library is not installed; the message explains how to get it."""


def has_arrow() -> bool:
    """Return whether pyarrow can be imported."""
    return importlib.util.find_spec("pyarrow") is not None


def write_csv(sampling: Sampling, out: BinaryIO) -> int:
    """Write all samples as CSV; return their number."""
    count = 0
    heading: list[Sequence[object]] = [COLUMNS]
    for rows in sampling.rows(for_spreadsheet):
        count += len(rows)
        out.write(_csv([*heading, *map(cells, rows)]))
        heading = []
    out.write(_csv(heading))
    return count


def _csv(rows: Iterable[Sequence[object]]) -> bytes:
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().encode()


def write_parquet(sampling: Sampling, out: BinaryIO) -> int:
    """Write all samples as Parquet; return their number. Raises `MissingLibrary` without pyarrow."""
    if not has_arrow():
        raise MissingLibrary(f"Parquet needs pyarrow: {EXTRA}, or name a file that ends in .csv")
    from pyarrow import parquet

    from stallwatch_exporter.sampling.tables import SCHEMA, write_tables

    with parquet.ParquetWriter(out, SCHEMA) as writer:
        return write_tables(sampling, writer)


_TIME = COLUMNS.index("time")
_EPOCH = datetime(1970, 1, 1)  # start of Unix time, in UTC


def cells(row: Row) -> list[object]:
    """Return the row with its time as text and its whole numbers as integers."""
    found: list[object] = [
        int(value) if isinstance(value, float) and value.is_integer() and abs(value) < 1e16 else value
        for value in row
    ]
    time = row[_TIME]
    found[_TIME] = None if time is None else seconds_text(float(time))
    return found


def seconds_text(time: float) -> str:
    """Return a time since the epoch as text, in UTC, to the microsecond."""
    if not math.isfinite(time):
        return ""
    moment = _EPOCH + timedelta(microseconds=round(time * 1e6))
    return moment.isoformat(" ", "microseconds") + "Z"


if TYPE_CHECKING:
    import pandas as pd

_TYPES = dict.fromkeys(FIELDS, "float64") | {"phase": str, "file": str}
_TYPES |= dict.fromkeys(("rank", "step", "total_steps", "line"), "Int64")  # integers that may be missing


def frame_of(paths: Sequence[str | os.PathLike[str]]) -> pd.DataFrame:
    """Return all samples in the paths as a data frame; warn of files that could not be read."""
    try:
        import pandas as pd
    except ImportError as error:
        raise ImportError(f"stallwatch.samples gives a pandas.DataFrame: {EXTRA}") from error

    sampling = Sampling(paths)
    frame = pd.DataFrame([row for rows in sampling.rows() for row in rows], columns=list(COLUMNS))
    micros = (frame["time"].astype(float) * 1e6).round()
    frame["time"] = pd.to_datetime(micros, unit="us", utc=True).astype("datetime64[us, UTC]")
    for problem in sampling.problems:
        warnings.warn(str(problem), stacklevel=3)
    return frame.astype(_TYPES)
