"""Write samples into a CSV or a Parquet file."""

from __future__ import annotations

import importlib.util
import math
import os
import warnings
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any, BinaryIO

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
    if has_arrow():  # the same bytes, but faster
        from pyarrow import csv

        from stallwatch_exporter.sampling.tables import SCHEMA, write_tables

        options = csv.WriteOptions(quoting_style="needed", quoting_header="none")
        with csv.CSVWriter(out, SCHEMA, write_options=options) as writer:
            return write_tables(sampling, writer, for_spreadsheet)
    out.write(HEADER.encode())
    count = 0
    for rows in sampling.rows(for_spreadsheet):
        count += len(rows)
        out.write("".join(map(row_text, rows)).encode())
    return count


def write_parquet(sampling: Sampling, out: BinaryIO) -> int:
    """Write all samples as Parquet; return their number. Raises `MissingLibrary` without pyarrow."""
    if not has_arrow():
        raise MissingLibrary(f"Parquet needs pyarrow: {EXTRA}, or name a file that ends in .csv")
    from pyarrow import parquet

    from stallwatch_exporter.sampling.tables import SCHEMA, write_tables

    with parquet.ParquetWriter(out, SCHEMA) as writer:
        return write_tables(sampling, writer)


HEADER = ",".join(COLUMNS) + "\n"

_EPOCH = datetime(1970, 1, 1)  # start of Unix time, in UTC
_LEAST = -5  # digits before the point: below, an exponent is shorter


def row_text(row: Row) -> str:
    """Return the row's line in CSV, including its newline."""
    return ",".join(["" if value is None else write(value) for write, value in zip(_WRITERS, row)]) + "\n"  # noqa: B905 - hot


def seconds_text(time: float) -> str:
    """Return a time since the epoch as text, in UTC, to the microsecond."""
    if not math.isfinite(time):
        return ""
    moment = _EPOCH + timedelta(microseconds=round(time * 1e6))
    return moment.isoformat(" ", "microseconds") + "Z"


def number_text(value: float) -> str:
    """Return the shortest text for this number, with an exponent if it is small or large."""
    value = float(value)
    if not math.isfinite(value):
        return str(value)
    text = repr(value).removesuffix(".0")
    if not value or 1e-4 <= abs(value) < 1e10:
        return text
    sign, numbers, exponent = Decimal(text).normalize().as_tuple()
    digits = "".join(map(str, numbers))
    before = len(digits) + int(exponent)
    if _LEAST <= before <= 0:
        text = "0." + "0" * -before + digits
    else:
        text = f"{digits[0]}{'.' * (len(digits) > 1)}{digits[1:]}e{before - 1:+d}"
    return "-" * sign + text


def _quoted(text: str) -> str:
    return '"' + text.replace('"', '""') + '"'


_OTHERS: dict[str, Callable[[Any], str]] = {
    "time": seconds_text,
    "phase": _quoted,
    "file": _quoted,
    **dict.fromkeys(("rank", "step", "total_steps", "line"), str),
}
_WRITERS = tuple(_OTHERS.get(name, number_text) for name in COLUMNS)


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
