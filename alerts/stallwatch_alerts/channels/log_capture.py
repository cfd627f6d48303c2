"""Capture Apprise's log and its servers' answers: Apprise itself returns only whether it sent.

Both hold URLs, and so secrets: the log is hidden from all other handlers, and captured text goes no further
than ``apprise_channel``, which masks it.
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
class Captured:
    """The warnings and the servers' answers of one try."""

    lines: list[str] = field(default_factory=list, repr=False)
    answers: list[Answer] = field(default_factory=list, repr=False)


# Apprise may send from a thread of its own, which inherits the context.
_capturing: ContextVar[Captured | None] = ContextVar("stallwatch_capturing", default=None)


@contextmanager
def capture() -> Iterator[Captured]:
    """Collect the log messages and answers inside the context."""
    captured = Captured()
    token = _capturing.set(captured)
    try:
        yield captured
    finally:
        _capturing.reset(token)


def silence_libraries() -> None:
    """Keep the log messages of Apprise and its HTTP library from all other handlers."""
    logger = logging.getLogger("apprise")
    logger.propagate = False
    logger.setLevel(logging.DEBUG)  # an SMTP server's reply is logged at DEBUG only
    logger.addFilter(_FILTER)
    # "POST /services/<token> HTTP/1.1" would be logged at DEBUG.
    logging.getLogger("urllib3").setLevel(logging.WARNING)


class _CaptureFilter(logging.Filter):
    """Captures Apprise's warnings, and the exceptions that it logs at DEBUG only.

    A filter, because no message may reach a handler of the user, or of a tool that collects all logs.
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
    """Capture the servers' answers to this plugin from now on.

    Every plugin of Apprise calls functions of the module ``requests``, and keeps at most the status of the
    answer: the plugin's own module gets a ``requests`` that captures answers. The rest of the process is not
    affected.
    """
    module = sys.modules[type(plugin).__module__]
    real = getattr(module, "requests", None)
    if real is not None and not isinstance(real, _CapturingRequests):
        module.requests = _CapturingRequests(real)  # type: ignore[attr-defined]


class _CapturingRequests:
    """The module ``requests``, with calls that capture the servers' answers."""

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
