"""What Apprise logs and gets while it sends: it returns only whether it sent, not the reasons.

Both hold URLs, and so secrets: the log is kept away from everybody else's handlers, and what is captured goes
no further than ``apprise_channel``, which masks it.
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

    said: list[str] = field(default_factory=list, repr=False)
    answers: list[Answer] = field(default_factory=list, repr=False)


# Apprise may send from a thread of its own, which inherits the context.
_capturing: ContextVar[Captured | None] = ContextVar("stallwatch_capturing", default=None)


@contextmanager
def capture() -> Iterator[Captured]:
    """Collect what is logged and answered within."""
    captured = Captured()
    token = _capturing.set(captured)
    try:
        yield captured
    finally:
        _capturing.reset(token)


def silence_libraries() -> None:
    """Keep what Apprise and its HTTP library log to ourselves."""
    logger = logging.getLogger("apprise")
    logger.propagate = False
    logger.setLevel(logging.DEBUG)  # what an SMTP server said comes at DEBUG only
    logger.addFilter(_FILTER)
    # "POST /services/<token> HTTP/1.1" would come at DEBUG.
    logging.getLogger("urllib3").setLevel(logging.WARNING)


class _CaptureFilter(logging.Filter):
    """Captures Apprise's warnings, and the exceptions that it logs at DEBUG only.

    A filter, as nothing may pass on to handlers: to one of the user's, or of a tool's that collects all logs.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        captured = _capturing.get()
        if captured is not None:
            said = record.getMessage().strip()
            if record.levelno >= logging.WARNING:
                captured.said.append(said)
            elif said.startswith(_DEBUG_PREFIX):
                captured.said.append(said.removeprefix(_DEBUG_PREFIX)[:_MOST])
        return False


_FILTER = _CaptureFilter()


def capture_answers(plugin: object) -> None:
    """From now on, what a server answers to this plugin is captured.

    Every plugin of Apprise calls functions of the module ``requests``, and keeps of the answer at most its
    status: the plugin's own module gets a ``requests`` that remembers. Nothing else in the process sees a
    difference.
    """
    module = sys.modules[type(plugin).__module__]
    real = getattr(module, "requests", None)
    if real is not None and not isinstance(real, _CapturingRequests):
        module.requests = _CapturingRequests(real)  # type: ignore[attr-defined]


class _CapturingRequests:
    """The module ``requests``; it captures what servers answer."""

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
