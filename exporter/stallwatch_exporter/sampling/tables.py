"""Samples as Arrow tables: needs pyarrow (the extra ``samples``)."""

from __future__ import annotations

import pyarrow as pa

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


def table_of(rows: list[Row]) -> pa.Table:
    """Return rows as a table."""
    columns = list(zip(*rows, strict=True)) or [()] * len(COLUMNS)
    at = COLUMNS.index("time")
    columns[at] = tuple(None if time is None else round(time * 1e6) for time in columns[at])
    arrays = [
        pa.array(values, field.type, from_pandas=False) for field, values in zip(SCHEMA, columns, strict=True)
    ]
    return pa.Table.from_arrays(arrays, schema=SCHEMA)
