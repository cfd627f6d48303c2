"""Samples into a CSV or a Parquet file."""

from __future__ import annotations

import contextlib
import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from stallwatch_exporter.sampling.rows import Sampling
from stallwatch_exporter.sampling.text import HEADER, row_text

EXTRA = "pip install 'stallwatch[samples]'"


class MissingLibrary(Exception):
    """A library is not installed; the message says how to get it."""


def has_arrow() -> bool:
    """Whether pyarrow can be imported."""
    return importlib.util.find_spec("pyarrow") is not None


def write_csv(sampling: Sampling, out: BinaryIO) -> int:
    """Write all samples; how many there were."""
    return _arrow_csv(sampling, out) if has_arrow() else plain_csv(sampling, out)


def plain_csv(sampling: Sampling, out: BinaryIO) -> int:
    """The same, byte for byte, with Python's own means."""
    out.write(HEADER.encode())
    count = 0
    for rows in sampling.rows():
        count += len(rows)
        out.write("".join(map(row_text, rows)).encode())
    return count


def _arrow_csv(sampling: Sampling, out: BinaryIO) -> int:
    from pyarrow import csv as arrow_csv

    from stallwatch_exporter.sampling.tables import SCHEMA

    count = 0
    options = arrow_csv.WriteOptions(quoting_style="needed", quoting_header="none")
    with arrow_csv.CSVWriter(out, SCHEMA, write_options=options) as writer:
        for table in sampling.tables():
            count += table.num_rows
            writer.write_table(table)
    return count


def write_parquet(sampling: Sampling, out: BinaryIO) -> int:
    """Write all samples; how many there were."""
    if not has_arrow():
        raise MissingLibrary(f"Parquet needs pyarrow: {EXTRA}, or name a file that ends in .csv")
    from pyarrow import parquet

    from stallwatch_exporter.sampling.tables import SCHEMA

    count = 0
    with parquet.ParquetWriter(out, SCHEMA) as writer:
        for table in sampling.tables():
            count += table.num_rows
            writer.write_table(table)
    return count


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file that takes its name once it is whole, so that what was there stays until then."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with beside.open("wb") as out:
            yield out
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
