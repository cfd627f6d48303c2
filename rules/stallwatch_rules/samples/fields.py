"""Convert the metric names and units of trainers to the field names and units of Stallwatch."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import msgspec


class Found(NamedTuple):
    """The values in a line, without the rank and the time."""

    step: int | None
    total: int | None
    values: dict[str, float]
    series: str  #: name of the counter, or an empty string if the values do not show progress


GIB = 1024.0**3
MIB = 1024.0**2
INVERSE = 0.0  #: marks a name whose values are steps per second, which are converted to seconds per step

_names = msgspec.json.decode(Path(__file__).with_suffix(".json").read_bytes())

#: A trainer's metric name in lowercase, without a leading "train/" → the field and the factor. Names that do
#: not refer to a training step are omitted.
FIELDS: dict[str, tuple[str, float]] = {
    **{name: (field, 1.0) for field, names in _names["names"].items() for name in names},
    **{name: (field, GIB) for field, names in _names["gibibytes"].items() for name in names},
    "train_speed(iter/s)": ("step_seconds", INVERSE),
}


def put(values: dict[str, float], name: str, value: float) -> None:
    """Store a trainer's value under the name of the corresponding Stallwatch field, if any.

    The first value of each field is kept. However, a value whose name is exactly the name of the field
    replaces an earlier value.
    """
    lower = name.lower()
    field = FIELDS.get(lower) or FIELDS.get(lower.removeprefix("train/"))
    if field is None:
        return
    ours, factor = field
    if factor == INVERSE:
        if value > 0:
            values.setdefault(ours, 1 / value)
    elif lower == ours:
        values[ours] = value
    else:
        values.setdefault(ours, value * factor)
