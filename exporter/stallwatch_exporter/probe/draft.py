"""The record that a probe is filling: a place for each field, and numbers that are still on their way."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from .devices import Reading
from .layout import FIELDS

Clock = Callable[[], float]  # Unix seconds
INDEX = {name: place for place, name in enumerate(FIELDS)}  #: where a field lies in ``Draft.cells``
NAN = float("nan")  #: not told
_TOLD_NAN = INDEX["told_nan"]


class Draft:
    """The fields of a record before it is written: their numbers lie where one copy takes them all.

    Packing them for each record would fetch every one of them from elsewhere, on every step.
    """

    def __init__(self, fields: int = len(FIELDS), clock: Clock = time.time) -> None:
        self.bytes = bytearray(fields * 8)
        self.cells = memoryview(self.bytes).cast("d")
        self.waiting: dict[str, Reading] = {}  #: by field, what is read of tensors
        self._clock = clock
        for place in range(fields):
            self.cells[place] = NAN

    def take(self, name: str, value: Any) -> None:
        """Give a field its value: a number, or a tensor, which is never waited for; it may raise anything."""
        if value is None:
            return
        place = INDEX[name]
        if isinstance(value, (int, float)):
            self._put(place, float(value))
            return
        reading = self.waiting.get(name)
        if reading is None:
            reading = self.waiting[name] = Reading(self._clock)
        number = reading.offer(value)
        if number is not None:
            self._put(place, number)

    def collect(self) -> None:
        """Take the numbers that have arrived meanwhile."""
        for name, reading in self.waiting.items():
            number = reading.ready()
            if number is not None:
                self._put(INDEX[name], number)

    def _put(self, place: int, number: float) -> None:
        self.cells[place] = number
        if number != number:  # which alone would say that it was not told
            marked = self.cells[_TOLD_NAN]
            self.cells[_TOLD_NAN] = float(int(marked if marked == marked else 0.0) | 1 << place)
