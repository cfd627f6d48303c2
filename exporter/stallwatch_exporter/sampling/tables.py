"""Convert samples to Arrow tables; needs pyarrow (the extra ``samples``)."""

from __future__ import annotations

from typing import Any

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
    time = COLUMNS.index("time")
    columns[time] = tuple(None if value is None else round(float(value) * 1e6) for value in columns[time])
    return pa.Table.from_arrays(list(map(pa.array, columns, SCHEMA.types)), schema=SCHEMA)
