"""Capture Apprise's log and the servers' responses, because Apprise returns only success or failure.

The log and the responses contain URLs and therefore secrets. The log is hidden from all other handlers, and
only ``apprise_channel``, which masks secrets, receives the captured text.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from stallwatch_alerts.channels.http import Answer

_CALLS = ("request", "get", "post", "put", "patch", "delete")
_MOST = 4096
_DEBUG_PREFIX = "Socket Exception: "


@dataclass
class DeliveryCapture:
    """The warnings from Apprise and the servers' responses during one attempt to deliver a notice."""

    lines: list[str] = field(default_factory=list, repr=False)
    answers: list[Answer] = field(default_factory=list, repr=False)


# This is a context variable, because Apprise might send from its own thread, which inherits the context.
_capturing: ContextVar[DeliveryCapture | None] = ContextVar("stallwatch_capturing", default=None)


@contextmanager
def capture() -> Iterator[DeliveryCapture]:
    """Collect the log messages and the servers' responses while the ``with`` block runs."""
    captured = DeliveryCapture()
    token = _capturing.set(captured)
    try:
        yield captured
    finally:
        _capturing.reset(token)


def silence_libraries() -> None:
    """Prevent other log handlers from receiving log messages from Apprise and from its HTTP library."""
    logger = logging.getLogger("apprise")
    logger.propagate = False
    logger.setLevel(logging.DEBUG)  # Apprise logs an SMTP server's reply at DEBUG only
    logger.addFilter(_FILTER)
    # At DEBUG, urllib3 would log "POST /services/<token> HTTP/1.1".
    logging.getLogger("urllib3").setLevel(logging.WARNING)


class _CaptureFilter(logging.Filter):
    """A log filter that captures warnings from Apprise, and exceptions that Apprise logs only at DEBUG.

    A log handler cannot prevent other handlers from receiving the messages, but a filter can.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        captured = _capturing.get()
        if captured is not None:
            text = record.getMessage().strip()
            if record.levelno >= logging.WARNING:
                captured.lines.append(text)
            elif text.startswith(_DEBUG_PREFIX):
                captured.lines.append(text.removeprefix(_DEBUG_PREFIX)[:_MOST])
        return False


_FILTER = _CaptureFilter()


def capture_answers(plugin: object) -> None:
    """Capture all future responses that servers send to this Apprise plugin.

    Every Apprise plugin calls functions in the ``requests`` module and keeps at most the status of the
    response. This function replaces ``requests`` only in the plugin's own module, so that other parts of the
    process are not affected.
    """
    module = sys.modules[type(plugin).__module__]
    real = getattr(module, "requests", None)
    if real is not None and not isinstance(real, _CapturingRequests):
        module.requests = _CapturingRequests(real)  # type: ignore[attr-defined]


class _CapturingRequests:
    """A replacement for the module ``requests`` whose functions also capture the servers' responses."""

    def __init__(self, real: Any) -> None:
        self._real = real

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._real, name)
        return _captured_call(found) if name in _CALLS else found


def _captured_call(call: Callable[..., Any]) -> Callable[..., Any]:
    def called(*args: Any, **kwargs: Any) -> Any:
        response = call(*args, **kwargs)
        captured = _capturing.get()
        if captured is not None:
            text = response.content[:_MOST].decode("utf-8", "replace")
            captured.answers.append(Answer(response.status_code, dict(response.headers), text))
        return response

    return called
