"""What Apprise says and gets while it sends: it returns only whether, the reasons are in its log and its
answers.

Both hold URLs, and so secrets: the log is kept away from everybody else's handlers, and what is heard goes
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

from stallwatch_alerts.channels.posting import Answer

_CALLS = ("request", "get", "post", "put", "patch", "delete")
_MOST = 4096
_TOLD_AT_DEBUG = "Socket Exception: "


@dataclass
class Heard:
    """Of one try."""

    said: list[str] = field(default_factory=list, repr=False)
    answers: list[Answer] = field(default_factory=list, repr=False)


# Apprise may send from a thread of its own, which inherits the context.
_hearing: ContextVar[Heard | None] = ContextVar("stallwatch_hearing", default=None)


@contextmanager
def overheard() -> Iterator[Heard]:
    """What is heard within."""
    heard = Heard()
    token = _hearing.set(heard)
    try:
        yield heard
    finally:
        _hearing.reset(token)


def silence_libraries() -> None:
    """Keep what Apprise and its HTTP library log to ourselves."""
    logger = logging.getLogger("apprise")
    logger.propagate = False
    logger.setLevel(logging.DEBUG)  # what an SMTP server said comes at DEBUG only
    logger.addFilter(_EAR)
    # "POST /services/<token> HTTP/1.1" would come at DEBUG.
    logging.getLogger("urllib3").setLevel(logging.WARNING)


class _Ear(logging.Filter):
    """Hears Apprise's warnings, and the exceptions that it tells at DEBUG only.

    A filter, as nothing may pass on to handlers: to one of the user's, or of a tool's that collects all logs.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        heard = _hearing.get()
        if heard is not None:
            said = record.getMessage().strip()
            if record.levelno >= logging.WARNING:
                heard.said.append(said)
            elif said.startswith(_TOLD_AT_DEBUG):
                heard.said.append(said.removeprefix(_TOLD_AT_DEBUG)[:_MOST])
        return False


_EAR = _Ear()


def listen_to(plugin: object) -> None:
    """From now on, what a server answers to this plugin is heard.

    Every plugin of Apprise calls functions of the module ``requests``, and keeps of the answer at most its
    status: the plugin's own module gets a ``requests`` that remembers. Nothing else in the process sees a
    difference.
    """
    module = sys.modules[type(plugin).__module__]
    real = getattr(module, "requests", None)
    if real is not None and not isinstance(real, _Listening):
        module.requests = _Listening(real)  # type: ignore[attr-defined]


class _Listening:
    """The module ``requests`` with ears."""

    def __init__(self, real: Any) -> None:
        self._real = real

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._real, name)
        return _listening(found) if name in _CALLS else found


def _listening(call: Callable[..., Any]) -> Callable[..., Any]:
    def called(*args: Any, **kwargs: Any) -> Any:
        response = call(*args, **kwargs)
        heard = _hearing.get()
        if heard is not None:
            text = response.content[:_MOST].decode("utf-8", "replace")
            heard.answers.append(Answer(response.status_code, dict(response.headers), text))
        return response

    return called
