"""The record that a probe is filling: a place for each field, and numbers that are still on their way.

Its bytes are those of a record (``layout``): number, time, fields. Once there is a ring they lie in its
header, so that storing a number is all that it takes to show it to the agent.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from .devices import Reading
from .layout import FIELDS

NUMBER, TIME = 0, 1  #: of the record, in ``Draft.cells``; the number is an integer there
FIRST = 2  #: the first field
INDEX = {name: place for place, name in enumerate(FIELDS, FIRST)}  #: where a field lies in ``Draft.cells``
NAN = float("nan")  #: not told
_TOLD_NAN = INDEX["told_nan"]


class Draft:
    """The fields of a record before it is written: their numbers lie where one copy takes them all."""

    def __init__(self, fields: int = len(FIELDS), clock: Callable[[], float] = time.time) -> None:
        self.bytes = memoryview(bytearray((FIRST + fields) * 8))
        self.cells = self.bytes.cast("d")
        self.waiting: dict[str, Reading] = {}  #: by field, what is read of tensors
        self._clock = clock
        for place in range(FIRST, FIRST + fields):
            self.cells[place] = NAN

    def move(self, place: memoryview) -> None:
        """Lie in `place` from now on."""
        place[:] = self.bytes
        self.bytes = place
        self.cells = place.cast("d")

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
        # NaN alone would say that it was not told, and the next step's number may cover either.
        if number - number != 0.0:
            marked = self.cells[_TOLD_NAN]
            self.cells[_TOLD_NAN] = float(int(marked if marked == marked else 0.0) | 1 << place - FIRST)
