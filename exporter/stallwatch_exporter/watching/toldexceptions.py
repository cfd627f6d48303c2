"""Unhandled exceptions that ranks told of, and that the log does not show.

Ranks' output often goes elsewhere (torchrun's ``--log-dir``), or is lost with the process. What the log says
as well is left to the log; so an exception waits for the lines that may still come.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from stallwatch_exporter.watching.concerns import line_of
from stallwatch_rules.records import Line
from stallwatch_rules.selftold import SOURCE, Key
from stallwatch_rules.stream import StreamReading
from stallwatch_rules.text.redact import redact

WAIT_SECONDS = 5.0
_MOST_WAITING = 1000
_COMPARED = 200  # characters of a message

Event = Mapping[str, Any]


class ToldExceptions:
    """The exceptions that may still turn up in the log."""

    def __init__(self) -> None:
        self._waiting: list[tuple[float, int, Event]] = []

    def heard(self, event: Event, number: int, now: float) -> None:
        """An ``exception`` event, line `number` of the events, read at `now`."""
        if len(self._waiting) < _MOST_WAITING:
            self._waiting.append((now, number, event))

    def unsaid(
        self, streams: Mapping[Key, StreamReading], now: float, *, everything: bool = False
    ) -> list[Line]:
        """The traceback's lines of each one that the log had time to show (or all) and does not."""
        due = [one for one in self._waiting if everything or not 0 <= now - one[0] < WAIT_SECONDS]
        if not due:
            return []
        self._waiting = [one for one in self._waiting if one not in due]
        known = set(_logged(streams))
        return [
            line for _, number, event in due if _key(event) not in known for line in _lines(event, number)
        ]


def _logged(streams: Mapping[Key, StreamReading]) -> Iterable[tuple[str, str]]:
    for (source, _), stream in streams.items():
        if source != SOURCE:
            for seen in stream.exceptions_now().seen.values():
                yield _short(seen.raised.exception), _compared(seen.raised.message)


def _key(event: Event) -> tuple[str, str]:
    return _short(str(event.get("exception", ""))), _compared(str(event.get("message", "")))


def _short(name: str) -> str:
    return name.rpartition(".")[2]


def _compared(message: str) -> str:
    """Of a message, what both sides have: its first line, without secrets."""
    return redact(message.partition("\n")[0].strip())[:_COMPARED]


def _lines(event: Event, number: int) -> list[Line]:
    """The event as Python prints an exception."""
    text = ["Traceback (most recent call last):"]
    frames = event.get("frames")
    for frame in frames if isinstance(frames, list) else []:
        place, _, name = str(frame).rpartition(" ")
        path, _, line = place.rpartition(":")
        text.append(f'  File "{path}", line {line}, in {name}')
    name = str(event.get("exception", "")).removeprefix("builtins.")
    message = str(event.get("message", "")).splitlines()
    text.append(f"{name}: {message[0]}" if message else name)
    return [line_of(event, number, each) for each in [*text, *message[1:]]]
