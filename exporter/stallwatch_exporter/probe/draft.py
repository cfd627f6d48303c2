"""The record that a probe is filling: a place for each field, and numbers still on their way.

Its bytes are those of a record (``layout``): number, time, fields. Once there is a ring they are in its
header, so that storing a number makes it visible to the agent.

``float(tensor)`` waits for all work queued on its device. So a copy into pinned host memory is queued behind
that work instead, with an event after it, and the number is taken when the event has passed.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

from .layout import FIELDS

NUMBER, TIME = 0, 1  #: places in ``Draft.cells``; the number is an integer there
FIRST = 2  #: the first field
INDEX = {name: place for place, name in enumerate(FIELDS, FIRST)}  #: place of a field in ``Draft.cells``
NAN = float("nan")  #: unknown
_TOLD_NAN = INDEX["told_nan"]
OFFER_SECONDS = 1.0  #: a tensor on a device is read at most this often


class Draft:
    """The fields of a record before it is written: one copy takes them all."""

    def __init__(self, fields: int = len(FIELDS), clock: Callable[[], float] = time.time) -> None:
        self.bytes = memoryview(bytearray((FIRST + fields) * 8))
        self.cells = self.bytes.cast("d")
        self.waiting: dict[str, Reading] = {}  #: readings of tensors, by field
        self._clock = clock
        for place in range(FIRST, FIRST + fields):
            self.cells[place] = NAN

    def move(self, place: memoryview) -> None:
        """Use `place` as memory from now on."""
        place[:] = self.bytes
        self.bytes = place
        self.cells = place.cast("d")

    def take(self, name: str, value: Any) -> None:
        """Set a field to a number or a tensor, which is never waited for; it may raise anything."""
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
        """Take the numbers that have arrived since."""
        for name, reading in self.waiting.items():
            number = reading.ready()
            if number is not None:
                self._put(INDEX[name], number)

    def _put(self, place: int, number: float) -> None:
        self.cells[place] = number
        # NaN alone means unknown, and the next step's number may replace either.
        if number - number != 0.0:
            marked = self.cells[_TOLD_NAN]
            self.cells[_TOLD_NAN] = float(int(marked if marked == marked else 0.0) | 1 << place - FIRST)


class Reading:
    """Readings of one value, one at a time."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._offered = float("-inf")
        self._host: Any = None
        self._event: Any = None

    def offer(self, value: Any) -> float | None:
        """Return the number, if it costs nothing to read; of a tensor on a device, ``ready`` returns it."""
        if is_spread(value):
            return None
        device = getattr(getattr(value, "device", None), "type", "cpu")
        if device == "cpu":
            # For a tensor that needs gradients, torch would print a warning into the training's output.
            return float(value.detach() if hasattr(value, "detach") else value)
        now = self._clock()
        if self._event is not None or 0.0 <= now - self._offered < OFFER_SECONDS:
            return None
        self._offered = now
        torch = sys.modules["torch"]
        backend = getattr(torch, device, None)  # torch.cuda, torch.npu
        if backend is None or value.numel() != 1:
            return None
        # The copy is queued on the tensor's device, whichever is the current one (torch 2.13:
        # ``aten/src/ATen/native/cuda/Copy.cu``); queries and events go to the current device's stream.
        with backend.device(value.device):
            if _capturing(backend):
                return None
            if self._host is None:
                self._host = torch.empty((), dtype=torch.float32, pin_memory=True)
            with torch.no_grad():
                self._host.copy_(value.detach().reshape(()), non_blocking=True)
            event = backend.Event()
            event.record(backend.current_stream(value.device))
        self._event = event
        return None

    def ready(self) -> float | None:
        """Return the number that was offered before, once it has arrived."""
        if self._event is None or not self._event.query():
            return None
        self._event = None
        return float(self._host)


def is_spread(value: Any) -> bool:
    """Whether it is a ``DTensor``: ranks hold parts of its number, and reading it may need all of them."""
    return hasattr(value, "to_local")


def _capturing(backend: Any) -> bool:
    """Whether a graph is being recorded: then the copy would become part of it."""
    asks = getattr(backend, "is_current_stream_capturing", None)
    return bool(asks()) if asks is not None else False
