"""Samples as Arrow tables: needs pyarrow (the extra ``samples``)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from stallwatch_rules.samples.table import COLUMNS, FIELDS, Row

if TYPE_CHECKING:
    from stallwatch_rules.samples.blocks import Block

_PHASES = pa.array(["train", "eval"])
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


def table_of_rows(rows: list[Row]) -> pa.Table:
    """Rows that were read line by line."""
    columns = list(zip(*rows, strict=True)) or [()] * len(COLUMNS)
    arrays: list[Any] = []
    for field, values in zip(SCHEMA, columns, strict=True):
        if field.name == "time":
            arrays.append(_times(np.array([np.nan if t is None else t for t in values], np.float64)))
        else:
            arrays.append(pa.array(values, field.type, from_pandas=False))
    return pa.Table.from_arrays(arrays, schema=SCHEMA)


def table_of_block(block: Block, file: str) -> pa.Table:
    """A block that was read at once."""
    arrays: list[Any] = []
    for field in SCHEMA:
        name = field.name
        if name == "rank":
            arrays.append(pa.array(block.rank, field.type, mask=block.rank < 0))
        elif name == "time":
            arrays.append(_times(block.time))
        elif name == "phase":
            arrays.append(_PHASES.take(pa.array(block.eval.astype(np.int8))))
        elif name == "file":
            arrays.append(pa.repeat(pa.scalar(file), block.size))
        elif name == "line":
            arrays.append(pa.array(block.line, field.type))
        elif name not in block.numbers:
            arrays.append(pa.nulls(block.size, field.type))
        else:
            numbers = block.numbers[name]
            if pa.types.is_integer(field.type):
                numbers = numbers.astype(np.int64)
            arrays.append(pa.array(numbers, field.type, mask=~block.valid[name], from_pandas=False))
    return pa.Table.from_arrays(arrays, schema=SCHEMA)


def _times(seconds: Any) -> Any:
    missing = np.isnan(seconds)
    micros = np.rint(np.where(missing, 0, seconds) * 1e6).astype(np.int64)
    return pa.array(micros, pa.int64(), mask=missing).cast(_TIME)
