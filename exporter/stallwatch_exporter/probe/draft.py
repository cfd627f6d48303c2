"""Fill the next record of a probe, including numbers that a device has not computed yet.

The draft has the format of a record (see ``layout``): number, time, and fields. When the ring exists, the
draft is in the ring's header, so that the agent sees each number immediately.

``float(tensor)`` would wait for all work that is queued on the tensor's device. Therefore, the probe queues a
copy into pinned host memory behind that work, followed by an event. It stores the number after the event has
passed.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

from .layout import FIELDS

NUMBER, TIME = 0, 1  #: indexes of the record's number (an integer) and Unix time in ``Draft.cells``
FIRST = 2  #: index of the first field
INDEX = {name: place for place, name in enumerate(FIELDS, FIRST)}  #: index of each field in ``Draft.cells``
NAN = float("nan")  #: value of an unknown field
_REPORTED_NAN = INDEX["told_nan"]
OFFER_SECONDS = 1.0  #: minimum number of seconds between two readings of a tensor on a device


class Draft:
    """Fields of a record that has not been written yet. A single copy transfers all of them to the ring."""

    def __init__(self, fields: int = len(FIELDS), clock: Callable[[], float] = time.time) -> None:
        self.bytes = memoryview(bytearray((FIRST + fields) * 8))
        self.cells = self.bytes.cast("d")
        self.waiting: dict[str, Reading] = {}  #: readings of tensors, by field
        self._clock = clock
        for place in range(FIRST, FIRST + fields):
            self.cells[place] = NAN

    def move(self, place: memoryview) -> None:
        """Move the draft to the memory at `place`."""
        place[:] = self.bytes
        self.bytes = place
        self.cells = place.cast("d")

    def take(self, name: str, value: Any) -> None:
        """Store a number in a field, now or when the number is available. Reading it can raise any error."""
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
        """Store the numbers of tensors that have been copied from their devices."""
        for name, reading in self.waiting.items():
            number = reading.ready()
            if number is not None:
                self._put(INDEX[name], number)

    def _put(self, place: int, number: float) -> None:
        self.cells[place] = number
        # A bit marks a field that was reported as NaN or infinity. The value alone is not enough, because
        # NaN can also mean unknown, and a later number can replace both values.
        if number - number != 0.0:
            marked = self.cells[_REPORTED_NAN]
            self.cells[_REPORTED_NAN] = float(int(marked if marked == marked else 0.0) | 1 << place - FIRST)


class Reading:
    """Reader of one field whose values are tensors on a device. Only one copy is in progress at a time."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._offered = float("-inf")
        self._host: Any = None
        self._event: Any = None

    def offer(self, value: Any) -> float | None:
        """Return the number in a value, or ``None`` if reading it would block. `ready` returns it later."""
        if is_spread(value):
            return None
        device = getattr(getattr(value, "device", None), "type", "cpu")
        if device == "cpu":
            # Without `detach`, if the tensor needs gradients, torch would print a warning in the program's
            # output.
            return float(value.detach() if hasattr(value, "detach") else value)
        now = self._clock()
        if self._event is not None or 0.0 <= now - self._offered < OFFER_SECONDS:
            return None
        self._offered = now
        torch = sys.modules["torch"]
        backend = getattr(torch, device, None)  # torch.cuda, torch.npu
        if backend is None or value.numel() != 1:
            return None
        # Torch queues the copy on the tensor's device, regardless of the current device (torch 2.13:
        # ``aten/src/ATen/native/cuda/Copy.cu``). However, queries and events use a stream of the current
        # device, so the tensor's device must be the current device.
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
        """Return the number of the last copied tensor when it is available, or ``None`` until then."""
        if self._event is None or not self._event.query():
            return None
        self._event = None
        return float(self._host)


def is_spread(value: Any) -> bool:
    """Return whether the value is a ``DTensor``. Reading such a value can require all ranks."""
    return hasattr(value, "to_local")


def _capturing(backend: Any) -> bool:
    """Return whether the current stream records a graph. A copy would become part of that graph."""
    is_capturing = getattr(backend, "is_current_stream_capturing", None)
    return bool(is_capturing()) if is_capturing is not None else False
