"""What ``stallwatch run`` and ``stallwatch tail`` share: the sinks, and the report when it is over."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from stallwatch.commands.context import tell
from stallwatch.config import Config
from stallwatch.handover import alert_settings
from stallwatch.terminal_sink import TerminalSink
from stallwatch_alerts.messages import ending_line
from stallwatch_exporter.ending_words import detail_in

if TYPE_CHECKING:
    from stallwatch_alerts.sink import ChatSink
    from stallwatch_alerts.store import IncidentStore
    from stallwatch_alerts.store_sink import StoreSink
    from stallwatch_exporter.incident import Ending, Sink
    from stallwatch_exporter.runfolder import RunFolder
    from stallwatch_rules.catalogue import Catalogue
    from stallwatch_rules.records import Diagnosis

_TERMINAL_SECONDS = 2.0
_STORE_SECONDS = 5.0
_CHAT_SECONDS = 10.0


class Listeners:
    """Everybody who is told of incidents: the terminal, the incident database and the chats."""

    def __init__(self, config: Config, catalogue: Catalogue) -> None:
        language = config["ui.language"]
        self._terminal = TerminalSink(catalogue, language)
        self._store: StoreSink | None = None
        self._chat: ChatSink | None = None
        if find_spec("sqlalchemy") is not None:
            from stallwatch_alerts.store_sink import StoreSink

            self._store = StoreSink(
                lambda: open_store(config), report=tell, url=config["alerts.incidents_url"]
            )
        if config["alerts.urls"]:
            if find_spec("apprise") is None:
                tell("[alerts] urls are set, but no message can leave: pip install 'stallwatch[alerts]'")
            else:
                from stallwatch_alerts.sink import ChatSink

                self._chat = ChatSink(alert_settings(config), catalogue, report=tell)

    @property
    def sinks(self) -> list[Sink]:
        """Chats first: what leaves the machine must not wait for what stays on it."""
        return [sink for sink in (self._chat, self._store, self._terminal) if sink is not None]

    def close(self) -> None:
        """Let everything leave that is still on its way, for a bounded time."""
        self._terminal.close(_TERMINAL_SECONDS)
        if self._store is not None:
            self._store.close(_STORE_SECONDS)
        if self._chat is not None:
            self._chat.close(_CHAT_SECONDS)
            if lost := self._chat.failed:
                tell(f"{lost} message{'' if lost == 1 else 's'} could not be delivered to chat")


def open_store(config: Config) -> IncidentStore:
    """The incident database that is configured, or the one in the state folder."""
    from stallwatch_alerts.store import IncidentStore

    url = config["alerts.incidents_url"]
    return IncidentStore(url) if url else IncidentStore.at_home(config["run.home"])


_KEPT = {
    "en": {
        (True, True): "the copies of its output and this diagnosis are in {path}",
        (True, False): "the copies of its output are in {path}",
        (False, True): "this diagnosis is in {path}",
    },
    "zh": {
        (True, True): "输出副本和这份诊断保存在 {path}",
        (True, False): "输出副本保存在 {path}",
        (False, True): "这份诊断保存在 {path}",
    },
}


def kept_line(path: Path, language: str) -> str:
    """What of the run is in its folder, by what is there; empty where nothing is."""
    try:
        copies = any(log.stat().st_size for log in (*path.glob("*.log"), *path.glob("ranks/*.log")))
        diagnosis = (path / "diagnosis.json").is_file()
    except OSError:
        return ""
    return _KEPT[language].get((copies, diagnosis), "").format(path=path)


def print_end(language: str, diagnosis: Diagnosis, ending: Ending, folder: RunFolder) -> None:
    """How the command ended and, unless all went well, what the diagnosis is; on stderr."""
    # Whoever only stops looking does not learn how the command ends.
    tell(detail_in(ending, language) if ending.kind == "unknown" else ending_line(ending, language))
    if ending.kind in ("finished", "unknown") and diagnosis.verdict in ("healthy", "no-training-log"):
        return
    try:
        _print_report(diagnosis, language)
    except Exception as error:  # whatever a log made of it: the exit code must still be the command's own
        tell(f"the report failed ({type(error).__name__}: {error}); try stallwatch diagnose {folder.path}")
    if folder.problem is None and (kept := kept_line(folder.path, language)):
        tell(kept)


def _print_report(diagnosis: Diagnosis, language: str) -> None:
    import io

    from rich.console import Console

    from stallwatch_rules.report.terminal import print_report

    if sys.stderr.isatty():
        print_report(diagnosis, Console(stderr=True), language)
        return
    text = io.StringIO()
    print_report(diagnosis, Console(file=text, width=100), language)
    tell(text.getvalue().rstrip())
