"""Samples as Arrow tables: needs pyarrow (the extra ``samples``)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from stallwatch_rules.samples.table import COLUMNS, FIELDS, Row

_TIME = pa.timestamp("us", tz="UTC")
SCHEMA = pa.schema(
    [
        ("rank", pa.int32()),
        ("time", _TIME),
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
    arrays: list[Any] = []
    for field, values in zip(SCHEMA, columns, strict=True):
        if field.name == "time":
            arrays.append(_times(np.array([np.nan if t is None else t for t in values], np.float64)))
        else:
            arrays.append(pa.array(values, field.type, from_pandas=False))
    return pa.Table.from_arrays(arrays, schema=SCHEMA)


def _times(seconds: Any) -> Any:
    missing = np.isnan(seconds)
    micros = np.rint(np.where(missing, 0, seconds) * 1e6).astype(np.int64)
    return pa.array(micros, pa.int64(), mask=missing).cast(_TIME)
