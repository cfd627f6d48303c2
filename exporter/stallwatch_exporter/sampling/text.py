"""A row of samples as a line of CSV, byte for byte as pyarrow writes it: texts quoted, nothing else."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

from stallwatch_rules.samples.table import COLUMNS, Row

HEADER = ",".join(COLUMNS) + "\n"

_EPOCH = datetime(1970, 1, 1)  # of UTC
_LEAST = -5  # digits before the point: below, an exponent is shorter


def row_text(row: Row) -> str:
    """The row's line, with its end."""
    return ",".join([write(value) for write, value in zip(_WRITERS, row, strict=True)]) + "\n"


def seconds_text(time: float | None) -> str:
    """A time since the epoch, in UTC, to the microsecond."""
    if time is None or not math.isfinite(time):
        return ""
    moment = _EPOCH + timedelta(microseconds=round(time * 1e6))
    return moment.isoformat(" ", "microseconds") + "Z"


def number_text(value: float | None) -> str:
    """The shortest digits that mean this number; with an exponent where it is small or large."""
    if value is None:
        return ""
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


def _whole(value: int | None) -> str:
    return "" if value is None else str(value)


def _quoted(text: str) -> str:
    return '"' + text.replace('"', '""') + '"'


_OTHERS: dict[str, Callable[[Any], str]] = {
    "time": seconds_text,
    "phase": _quoted,
    "file": _quoted,
    **dict.fromkeys(("rank", "step", "total_steps", "line"), _whole),
}
_WRITERS = tuple(_OTHERS.get(name, number_text) for name in COLUMNS)
