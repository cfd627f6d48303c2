"""Incidents on the terminal of ``stallwatch run``: a panel where a person looks, prefixed lines in a log."""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING, TextIO

from stallwatch_alerts.messages.compose import Message
from stallwatch_alerts.notice import incident_notice
from stallwatch_alerts.worker import Worker
from stallwatch_exporter.incident import Incident
from stallwatch_exporter.notices import tell

if TYPE_CHECKING:
    from stallwatch_rules.pages.catalogue import Catalogue

_COLOURS = {"failure": "red", "warning": "yellow", "info": "cyan", "success": "green"}


class TerminalSink:
    """Shows each incident as it opens and as it resolves.

    It writes from a thread of its own: a terminal that was stopped with Ctrl-S must not stop the watching.
    """

    def __init__(self, catalogue: Catalogue, language: str, stream: TextIO | None = None) -> None:
        self._catalogue = catalogue
        self._language = language
        self._stream = stream or sys.stderr
        self._shown: set[tuple[str, str]] = set()
        self._worker: Worker[tuple[Message, str] | str | threading.Event] = Worker(
            "stallwatch-terminal", self._show
        )

    def __call__(self, incident: Incident) -> None:
        """Queue the panel, once per stage and incident."""
        key = (incident.id, incident.stage)
        if key in self._shown or incident.kind == "ended":  # the end has a report of its own
            return
        self._shown.add(key)
        notice = incident_notice(incident, self._language, self._catalogue.pages.get(incident.rule))
        self._worker.put((notice.message, _COLOURS[notice.level]))

    def notice(self, text: str) -> None:
        """Say something that is no incident, after the panels that came before it: they are its reason."""
        if not self._worker.put(text):
            tell(text)

    def settle(self, timeout: float) -> bool:
        """Wait until all that was told until now is shown."""
        shown = threading.Event()
        return self._worker.put(shown) and shown.wait(timeout)

    def close(self, timeout: float) -> bool:
        """Wait until all is shown."""
        return self._worker.close(timeout)

    def _show(self, item: tuple[Message, str] | str | threading.Event, _give_up: threading.Event) -> None:
        if isinstance(item, threading.Event):
            item.set()
        elif isinstance(item, str):
            tell(item)
        else:
            self._panel(*item)

    def _panel(self, message: Message, colour: str) -> None:
        if not self._stream.isatty():
            lines = [message.title, *("  " + line if line else "" for line in message.text.splitlines())]
            self._stream.write("".join(f"stallwatch: {line}".rstrip() + "\n" for line in lines))
            self._stream.flush()
            return
        from rich.console import Console
        from rich.panel import Panel
        from rich.text import Text

        console = Console(file=self._stream)
        # The run may be in the middle of a progress bar's line.
        self._stream.write("\n")
        title = Text(message.title, style="bold")
        width = min(console.width, 110)
        console.print(
            Panel(Text(message.text), title=title, title_align="left", border_style=colour, width=width)
        )
