"""A number that may still be on its way on a device: read without waiting for the device.

``float(tensor)`` waits for all work that the device was given. So a copy into pinned host memory is queued
behind that work instead, with an event after it, and the number is taken when the event has passed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

OFFER_SECONDS = 1.0  #: a tensor on a device is asked for at most this often


class Reading:
    """The readings of one value, one at a time."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._offered = float("-inf")
        self._host: Any = None
        self._event: Any = None

    def offer(self, value: Any) -> float | None:
        """The number, if it costs nothing to read; of a tensor on a device it comes with ``ready``."""
        if is_spread(value):
            return None
        device = getattr(getattr(value, "device", None), "type", "cpu")
        if device == "cpu":
            # Of a tensor that needs gradients torch would warn, in the middle of the training's output.
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
        # ``aten/src/ATen/native/cuda/Copy.cu``); what is asked and recorded goes to the current one's stream.
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
        """The number that was offered before, once it has arrived."""
        if self._event is None or not self._event.query():
            return None
        self._event = None
        return float(self._host)


def is_spread(value: Any) -> bool:
    """Whether it is a ``DTensor``: the ranks hold parts of its number, and reading it may take all."""
    return hasattr(value, "to_local")


def _capturing(backend: Any) -> bool:
    """Whether a graph is being recorded: then the copy would become part of it."""
    asks = getattr(backend, "is_current_stream_capturing", None)
    return bool(asks()) if asks is not None else False
