"""Send the incidents of ``stallwatch run`` and ``stallwatch tail``, and print the final report."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from msgspec.structs import replace

from stallwatch.cli.context import print_notice, rendered, say
from stallwatch.config.chats import checked_settings, connecting
from stallwatch.config.handover import notified_elsewhere, open_people, open_spool, open_store
from stallwatch.config.loading import Config
from stallwatch_alerts.messages.compose import Message, ending_line
from stallwatch_alerts.neutral import with_originals
from stallwatch_alerts.notice import incident_notice
from stallwatch_alerts.worker import Worker
from stallwatch_exporter.incident import HOST_GONE, HOST_MISSING, Incident, optional_methods
from stallwatch_exporter.notices import at_the_end, begin_line
from stallwatch_rules.end_lines import end_line
from stallwatch_rules.locale import render, templates
from stallwatch_rules.messages import has

if TYPE_CHECKING:
    from stallwatch_alerts.deadman import DeadmanSink
    from stallwatch_alerts.sink import ChatSink
    from stallwatch_alerts.store_sink import StoreSink
    from stallwatch_exporter.cluster.joining import Engine
    from stallwatch_exporter.incident import Sink
    from stallwatch_exporter.runs.runfolder import RunFolder
    from stallwatch_rules.endings import Ending
    from stallwatch_rules.pages.catalogue import Catalogue
    from stallwatch_rules.records import Diagnosis

_TERMINAL_SECONDS = 2.0
_STORE_SECONDS = 5.0
_CHAT_SECONDS = 10.0
_DEADMAN_SECONDS = 5.0
# Seconds that a warning waits if its impact depends on the next steps. If a stall follows in this time,
# one message reports both.
_WARNING_SECONDS = 60.0
_ORPHANS_SECONDS = 60.0
_PRELOAD_SECONDS = 3.0
_WORDS = (
    "alerts",
    "checkpoints",
    "cli",
    "concern",
    "diagnosis",
    "endings",
    "report",
    "run",
    "span",
    "stacks",
)
_PRELOADED = (
    "rich.console",
    "stallwatch_alerts.orphans",
    "stallwatch_exporter.postmortem.recorded",
    "stallwatch_rules.report.terminal",
)
_LATER = "the next stallwatch run, stallwatch relay, or stallwatch alerts send delivers all kept messages"


class Destinations:
    """All destinations of a run's incidents: the terminal, the incident database, and the chats."""

    def __init__(self, config: Config, catalogue: Catalogue) -> None:
        self._language: str = config["ui.language"]
        self._terminal = TerminalSink(catalogue, self._language)
        self._store: StoreSink | None = None
        self._chat: ChatSink | None = None
        self._deadman: DeadmanSink | None = None
        self._orphans: threading.Timer | None = None
        self._looked = False
        # Functions that record that a run's incidents were sent.
        self._unreported: list[Callable[[], None]] = []
        self.run_failed = False  #: True if the run failed, even if its command returned 0
        self._home: Path = config["run.home"]
        self._incidents_url: str = config["alerts.incidents_url"]
        self._preload = threading.Timer(_PRELOAD_SECONDS, preload, (self._language,))
        self._preload.daemon = True
        self._preload.start()
        if config["alerts.deadman_url"]:
            from stallwatch_alerts.deadman import DeadmanSink

            self._deadman = DeadmanSink(
                config["alerts.deadman_url"], seconds=config["alerts.deadman_seconds"], report=print_notice
            )
        if find_spec("sqlalchemy") is not None:
            from stallwatch_alerts.store_sink import StoreSink

            self._store = StoreSink(
                partial(open_store, config),
                report=print_notice,
                url=config["alerts.incidents_url"],
                keep_days=config["alerts.keep_days"],
            )
            # The delay allows this run to continue the record of a dead agent with the same name.
            self._orphans = threading.Timer(_ORPHANS_SECONDS, self._close_orphans)
            self._orphans.daemon = True
            self._orphans.start()
        settings = checked_settings(config, catalogue, print_notice)
        if settings.all_urls:
            if find_spec("apprise") is None or self._store is None:
                print_notice(
                    "[alerts] urls are set, but no message can be sent; run pip install 'stallwatch[alerts]'"
                )
            else:
                from stallwatch_alerts.sink import ChatSink

                self._chat = ChatSink(
                    settings,
                    catalogue,
                    report=print_notice,
                    connect=partial(connecting, config),
                    warning_seconds=_WARNING_SECONDS,
                    spool=partial(open_spool, config),
                    people=partial(open_people, config),
                    delivered=self._store.note_notified,
                    settled=notified_elsewhere(config),
                )

    @property
    def sinks(self) -> list[Sink]:
        """All receivers of incidents. Chats come first, so that messages do not wait for local output."""
        return [sink for sink in (self._chat, self._store, self._terminal, self._deadman) if sink is not None]

    def alive(self) -> None:
        """Do the incident receivers' periodic work. Call this method if no agent calls it."""
        for alive in optional_methods(self.sinks, "alive"):
            alive("")

    def engine(self) -> Engine | None:
        """If configured, return a function that connects a run's agents through a PostgreSQL database."""
        url = self._incidents_url
        if self._store is None or not url:
            return None
        from stallwatch_alerts.storage.cluster import PostgresBacking, is_cluster_engine

        if not is_cluster_engine(url):
            return None
        return lambda identity, merges, agent: PostgresBacking(
            url, identity, merges, agent=agent, notice=self.notice
        )

    def notice(self, text: str) -> None:
        """Print a notice on the terminal. Earlier reports about incidents are printed first."""
        self._terminal.notice(text)

    def ended(self, diagnosis: Diagnosis, ending: Ending, folder: RunFolder) -> None:
        """After all earlier reports, print how the command ended."""
        self.run_failed = bool(ending.failed)
        self._unreported.append(partial(folder.write_info, reported=True))
        self._terminal.settle(_TERMINAL_SECONDS)
        print_end(self._language, diagnosis, ending, folder)
        if not sys.stderr.isatty():  # stderr is a log that might be diagnosed without the run's folder
            stalled = diagnosis.progress.stalled_after_step is not None or diagnosis.verdict == "stalled"
            if line := end_line(ending, folder.info.ended_at or time.time(), stalled=stalled):
                print_notice(line)

    def _close_orphans(self) -> None:
        from stallwatch_alerts.orphans import close_orphans, report_unsent
        from stallwatch_exporter.runs.runfolder import mark_reported

        self._looked = True

        def hand_on(incident: Incident) -> None:
            if self._chat is not None:
                self._chat(incident)
            if self._store is not None:
                self._store(incident)

        def note(incident: Incident) -> None:
            if self._chat is not None:
                self._chat.adopt(incident)
            if self._store is not None:
                self._store(incident)

        found = report_unsent(self._home, time.time(), hand_on)
        if self._chat is not None:  # if there are no chats, the incidents remain for an agent that has chats
            self._unreported += [partial(mark_reported, *each) for each in found]
        close_orphans(self._home, time.time(), hand_on, note)

    def close(self) -> None:
        """Deliver the queued incidents within a time limit. Never raise an exception."""
        guard = at_the_end(print_notice)
        self._preload.cancel()
        if self._orphans is not None:
            self._orphans.cancel()
            if not self._looked:  # the run took less than a minute
                with contextlib.suppress(Exception):
                    self._close_orphans()
        with guard("printing the last lines on the terminal"):
            self._terminal.close(_TERMINAL_SECONDS)
        waiting, sent, unreported = 0, self._chat is None, list(self._unreported)
        if self._chat is not None:
            with guard("sending the last messages"):
                self._chat.close(_CHAT_SECONDS)
                waiting = self._chat.kept()
                sent = not self._chat.failed
        for note in unreported if sent else ():
            with guard("recording that the run was reported"):
                note()
        if self._store is not None:  # after the chats, because this database records their deliveries
            with guard("storing the last incidents"):
                self._store.close(_STORE_SECONDS)
        if self._deadman is not None:
            with guard("sending the last ping"):
                self._deadman.close(_DEADMAN_SECONDS)
        if self._chat is not None and (lost := self._chat.failed):
            print_notice(f"{lost} message{'' if lost == 1 else 's'} could not be delivered to chats")
        if waiting:
            kept = "message is" if waiting == 1 else "messages are"
            print_notice(f"{waiting} {kept} kept on disk for chats; {_LATER}")


def preload(language: str) -> None:
    """Import the modules and templates of the report early.

    At the end of a run, the process might have no free file descriptor to import them.
    """
    for name in _PRELOADED:
        with contextlib.suppress(Exception):  # the import is repeated when the module is needed
            import_module(name)
    for area in _WORDS:
        with contextlib.suppress(Exception):
            templates(language, area)


def kept_line(path: Path, language: str) -> str:
    """Return a line about the output copies and diagnosis in the run's folder, or "" if there are none."""
    from stallwatch_exporter.runs.reserve import NAME

    try:
        copies = any(log.stat().st_size for log in (*path.glob("*.log"), *path.glob("ranks/*.log")))
        diagnosis = any((path / name).is_file() for name in ("diagnosis.json", NAME))
    except OSError:
        return ""
    kept = "-and-".join([*["copies"] * copies, *["diagnosis"] * diagnosis])
    return say(f"kept-{kept}", language, path=str(path)) if kept else ""


def print_end(language: str, diagnosis: Diagnosis, ending: Ending, folder: RunFolder) -> None:
    """Print on stderr how the command ended and, if there was a problem, the diagnosis."""
    # If only the watching stopped, the command might still run, so its ending is unknown.
    print_notice(
        render(ending.detail, language) if ending.kind == "unknown" else ending_line(ending, language)
    )
    well = not diagnosis.in_trouble and diagnosis.verdict != "degraded"
    if ending.kind in ("finished", "unknown") and well:
        for note in diagnosis.notes:
            if has(note, "diagnosis.finished-early"):
                print_notice(render(note, language))
        return
    try:
        _print_report(replace(diagnosis, ending=""), language)  # the ending is already printed
    except Exception as error:  # an error in the report must not change the exit code
        print_notice(
            f"the report failed ({type(error).__name__}: {error}); run stallwatch diagnose {folder.path}"
        )
    if folder.problem is None and (kept := kept_line(folder.path, language)):
        print_notice(kept)
    from stallwatch_exporter.postmortem.recorded import lacking

    for line in (*lacking(folder.info), folder.kept_elsewhere()):
        if line:
            print_notice(render(line, language))


def _print_report(diagnosis: Diagnosis, language: str) -> None:
    from stallwatch_rules.report.terminal import print_report

    if sys.stderr.isatty():
        from rich.console import Console

        print_report(diagnosis, Console(stderr=True), language)
        return
    print_notice(
        rendered(lambda console: print_report(diagnosis, console, language), coloured=False).rstrip()
    )


_COLOURS = {"failure": "red", "warning": "yellow", "info": "cyan", "success": "green"}


class TerminalSink:
    """A sink that shows each incident on the terminal when it opens and when it resolves.

    A separate thread writes the notices, so a terminal that Control+S has paused does not block the agent.
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
        """Queue a panel about the incident, once for each of its stages."""
        key = (incident.id, incident.stage)
        # The final report of this host shows how the run ended, but not that another host is absent.
        is_in_report = incident.kind == "ended" and incident.rule not in (HOST_GONE, HOST_MISSING)
        if key in self._shown or is_in_report:
            return
        self._shown.add(key)
        page = self._catalogue.pages.get(incident.rule)
        notice = incident_notice(incident, self._language, page, ending=False)  # the report shows the end
        message = Message(*map(with_originals, (notice.message.title, notice.message.text)))
        self._worker.put((message, _COLOURS[notice.level]))

    def adopt(self, incident: Incident) -> None:
        """Record that another agent showed the incident's opening or end.

        This terminal shows the end only if it also showed the opening.
        """
        began = (incident.id, "open")
        if incident.status == "resolved" and began in self._shown:
            self(incident)
        self._shown |= {began, (incident.id, incident.stage)}

    def notice(self, text: str) -> None:
        """Print a notice after the panels of all incidents that were queued before it."""
        if not self._worker.put(text):
            print_notice(text)

    def settle(self, timeout: float) -> bool:
        """Wait until everything in the queue is shown. After `timeout` seconds, return False."""
        shown = threading.Event()
        return self._worker.put(shown) and shown.wait(timeout)

    def close(self, timeout: float) -> bool:
        """Close the sink after everything is shown. After `timeout` seconds, return False."""
        return self._worker.close(timeout)

    def _show(self, item: tuple[Message, str] | str | threading.Event, _give_up: threading.Event) -> None:
        if isinstance(item, threading.Event):
            item.set()
        elif isinstance(item, str):
            print_notice(item)
        else:
            self._panel(*item)

    def _panel(self, message: Message, colour: str) -> None:
        begin_line(self._stream)
        if not self._stream.isatty():
            lines = [message.title, *("  " + line if line else "" for line in message.text.splitlines())]
            self._stream.write("".join(f"stallwatch: {line}".rstrip() + "\n" for line in lines))
            self._stream.flush()
            return
        from rich.console import Console
        from rich.panel import Panel
        from rich.text import Text

        console = Console(file=self._stream)
        title = Text(message.title, style="bold")
        width = min(console.width, 110)
        console.print(
            Panel(Text(message.text), title=title, title_align="left", border_style=colour, width=width)
        )
