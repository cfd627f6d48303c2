"""Convert samples to Arrow tables; needs pyarrow (the extra ``samples``)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from stallwatch_exporter.sampling.rows import Sampling
from stallwatch_rules.samples.table import COLUMNS, FIELDS, Row

SCHEMA = pa.schema(
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


def write_tables(sampling: Sampling, writer: Any) -> int:
    """Write all samples with a writer of Arrow tables; return their number."""
    count = 0
    for rows in sampling.rows():
        count += len(rows)
        writer.write_table(table_of(rows))
    return count


def table_of(rows: list[Row]) -> pa.Table:
    """Return rows as an Arrow table."""
    columns = list(zip(*rows, strict=True)) or [()] * len(COLUMNS)
    return pa.Table.from_arrays(list(map(_array, columns, SCHEMA.types)), schema=SCHEMA)


def _array(values: tuple[Any, ...], type_: pa.DataType) -> pa.Array:
    """Return the column as an array, made from buffers because ``pa.array`` would import pandas."""
    length = len(values)
    missing = values.count(None)
    if missing == length:  # most logs have few of the columns
        return pa.nulls(length, type_)
    if pa.types.is_string(type_):
        text = "".join(values)
        parts = values if text.isascii() else map(str.encode, values)
        ends = np.cumsum(np.fromiter(map(len, parts), np.int32, length), dtype=np.int32)
        offsets = np.insert(ends, 0, 0)
        return pa.Array.from_buffers(
            type_, length, [None, pa.py_buffer(offsets), pa.py_buffer(text.encode())]
        )
    filled = [0 if value is None else value for value in values] if missing else values
    valid = None
    if missing:
        known = np.array([value is not None for value in values])
        valid = pa.py_buffer(np.packbits(known, bitorder="little"))
    if pa.types.is_timestamp(type_):
        numbers = np.rint(np.array(filled, float) * 1e6).astype(np.int64)
    else:
        numbers = np.array(filled, type_.to_pandas_dtype())
    return pa.Array.from_buffers(type_, length, [valid, pa.py_buffer(numbers)])
