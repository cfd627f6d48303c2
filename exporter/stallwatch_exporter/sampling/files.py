"""Write samples to a CSV or Parquet file, or return them as a data frame."""

from __future__ import annotations

import csv
import io
import math
import os
import warnings
from collections.abc import Sequence
from datetime import datetime, timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, BinaryIO

from stallwatch_exporter.sampling.rows import Sampling
from stallwatch_rules.samples.table import COLUMNS, FIELDS, Row
from stallwatch_rules.text.controls import for_spreadsheet

if TYPE_CHECKING:
    import pandas as pd

EXTRA = "pip install 'stallwatch[samples]'"
_EPOCH = datetime(1970, 1, 1)  # start of Unix time, in UTC
_TYPES = dict.fromkeys(FIELDS, "float64") | {"phase": str, "file": str}
_TYPES |= dict.fromkeys(("rank", "step", "total_steps", "line"), "Int64")  # integers that can be missing


class MissingLibrary(Exception):
    """Raised if a library is not installed. The message explains how to install it."""


def write_csv(sampling: Sampling, out: BinaryIO) -> int:
    """Write all samples as CSV and return their number. If all inputs are unreadable, write no header."""
    count = 0
    header = (",".join(COLUMNS) + "\n").encode()
    for rows in sampling.rows(for_spreadsheet):
        if rows and not count:
            out.write(header)
        count += len(rows)
        out.write(csv_of(rows).encode())
    if not count and not sampling.problems:
        out.write(header)
    return count


def csv_of(rows: Sequence[Row]) -> str:
    """Return rows as lines of CSV. Columns are converted one at a time because most of them are empty."""
    columns = [_cells(name, column) for name, column in zip(COLUMNS, zip(*rows, strict=True), strict=False)]
    return "".join([",".join(cells) + "\n" for cells in zip(*columns, strict=True)])


def _cells(name: str, column: Sequence[float | str | None]) -> Sequence[str]:
    """Return the cells of a column as text. Times are in UTC, and whole numbers are written as integers."""
    if column.count(None) == len(column):
        return [""] * len(column)
    if name == "time":
        return ["" if time is None else _utc(float(time)) for time in column]
    if isinstance(column[0], str):
        return [_quoted(str(text)) for text in column]
    return ["" if value is None else repr(value).removesuffix(".0") for value in column]


@lru_cache(maxsize=64)
def _quoted(text: str) -> str:
    cell = io.StringIO(newline="")
    csv.writer(cell, lineterminator="").writerow([text])
    return cell.getvalue()


def _utc(time: float) -> str:
    """Return a Unix time as text, in UTC with microseconds."""
    if not math.isfinite(time):
        return ""
    second, micros = divmod(round(time * 1e6), 1_000_000)
    return f"{_utc_second(second)}.{micros:06d}Z"


@lru_cache(maxsize=1024)  # consecutive rows often have the same second
def _utc_second(second: int) -> str:
    return (_EPOCH + timedelta(seconds=second)).isoformat(" ", "seconds")


def write_parquet(sampling: Sampling, out: BinaryIO) -> int:
    """Write all samples as Parquet and return their number. Raises `MissingLibrary` if pyarrow is missing."""
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError as error:
        raise MissingLibrary(
            f"Parquet needs pyarrow; run {EXTRA}, or specify an output file that ends in .csv"
        ) from error

    schema = pa.schema(
        [
            ("rank", pa.int32()),
            ("time", pa.timestamp("us", tz="UTC")),
            ("step", pa.int64()),
            ("total_steps", pa.int64()),
            ("phase", pa.string()),
            ("file", pa.string()),
            ("line", pa.int64()),
            *((name, pa.float64()) for name in FIELDS),
        ]
    )
    place = COLUMNS.index("time")
    count = 0
    with parquet.ParquetWriter(out, schema) as writer:
        for rows in sampling.rows():
            count += len(rows)
            columns = list(zip(*rows, strict=True)) or [()] * len(COLUMNS)
            columns[place] = tuple(
                None if time is None else round(float(time) * 1e6) for time in columns[place]
            )
            arrays = list(map(pa.array, columns, schema.types))
            writer.write_table(pa.Table.from_arrays(arrays, schema=schema))
    return count


def frame_of(paths: Sequence[str | os.PathLike[str]]) -> pd.DataFrame:
    """Return all samples in the paths as a data frame. Warn about files that could not be read."""
    try:
        import pandas as pd
    except ImportError as error:
        raise ImportError(f"stallwatch.samples needs pandas; run {EXTRA}") from error

    sampling = Sampling(paths)
    frame = pd.DataFrame([row for rows in sampling.rows() for row in rows], columns=list(COLUMNS))
    micros = (frame["time"].astype(float) * 1e6).round()
    frame["time"] = pd.to_datetime(micros, unit="us", utc=True).astype("datetime64[us, UTC]")
    for problem in sampling.problems:
        warnings.warn(str(problem), stacklevel=3)
    return frame.astype(_TYPES)
