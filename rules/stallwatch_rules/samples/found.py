"""What a reader of one format found in a line."""

from __future__ import annotations

from typing import NamedTuple


class Found(NamedTuple):
    """The numbers of a line, before the line's own rank and time are put to them."""

    step: int | None
    total: int | None
    values: dict[str, float]
    series: str  #: which counter; empty where it is none that shows progress
