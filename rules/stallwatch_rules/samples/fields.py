"""What trainers call the same number: the names in their dictionaries, and their unit in ours."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import msgspec


class Found(NamedTuple):
    """The numbers of a line, before the line's own rank and time are put to them."""

    step: int | None
    total: int | None
    values: dict[str, float]
    series: str  #: which counter; empty where it is none that shows progress


GIB = 1024.0**3
MIB = 1024.0**2
INVERSE = 0.0  #: the name tells steps a second; we keep seconds a step

_names = msgspec.json.decode(Path(__file__).with_suffix(".json").read_bytes())

#: A name in lower case, without a leading "train/" → our field and the factor. Names that mean no training
#: step are not here.
FIELDS: dict[str, tuple[str, float]] = {
    **{name: (field, 1.0) for field, names in _names["names"].items() for name in names},
    **{name: (field, GIB) for field, names in _names["gibibytes"].items() for name in names},
    "train_speed(iter/s)": ("step_seconds", INVERSE),
}


def put(values: dict[str, float], name: str, value: float) -> None:
    """Put a trainer's number among the values under our name, if it is one of ours; the first of each stays,
    but what is simply called the loss goes before other losses."""
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
