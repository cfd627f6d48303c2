"""Code that the commands share: the effective configuration, the catalogue, options, and output."""

from __future__ import annotations

import errno
import io
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import click

from stallwatch.config.handover import is_about_servers, mask_site_patterns, rule_folders
from stallwatch.config.loading import UNREAD, Config, Setting, load
from stallwatch_exporter.notices import print_notice
from stallwatch_rules.files import is_own
from stallwatch_rules.text.controls import printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from stallwatch_alerts.store import IncidentStore
    from stallwatch_logs.inputs import InputProblem
    from stallwatch_rules.messages import Message
    from stallwatch_rules.pages.catalogue import Catalogue

__all__ = ["print_notice"]

CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}

PATH = click.Path(path_type=Path)
FILE = click.Path(path_type=Path, dir_okay=False)  #: a file to write
FOLDER = click.Path(path_type=Path, file_okay=False)

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def duration(_context: click.Context, _parameter: click.Parameter, value: str | None) -> float | None:
    """Convert an option's value such as ``90``, ``30s``, ``5m``, or ``2h`` to seconds."""
    if value is None:
        return None
    found = re.fullmatch(r"(\d{1,9}(?:\.\d+)?)\s*([smhd]?)", value.strip().lower())
    if found is None or not float(found[1]):
        raise click.BadParameter(f"{value} is not a duration; use a value such as 30s, 5m, or 2h")
    return float(found[1]) * _UNITS[found[2] or "s"]


class Group(click.Group):
    """A group of commands. An error suggests similar commands, or the new name of a renamed command."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that the arguments name."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError:
            from stallwatch_rules.changed_names import changed_name

            path = ["stallwatch", *ctx.command_path.split()[1:], args[0]]
            if (row := changed_name("command", " ".join(path))) is not None:
                message = f"{row.old} was replaced by {row.new} in {row.since}. {row.advice}"
            elif not args[0].startswith("-") and (similar := self._similar(ctx, args[0])):
                message = f"No such command {args[0]!r}. Did you mean {' or '.join(map(repr, similar))}?"
            else:
                raise
            raise click.UsageError(message, ctx) from None

    def _similar(self, ctx: click.Context, word: str) -> list[str]:
        """Return the commands with a similar name, or else the commands whose help contains the word."""
        from difflib import get_close_matches

        names = self.list_commands(ctx)  # not `self.commands`, because commands are loaded when needed
        helps = {name: command.help or "" for name in names if (command := self.get_command(ctx, name))}
        pattern = re.compile(rf"\b{re.escape(word)}s?\b", re.IGNORECASE)
        return get_close_matches(word, names) or [
            name for name, text in helps.items() if pattern.search(text.partition("\n\n")[0])
        ]


_CHATS = ("alerts.urls", "alerts.routes")
# Sections that configure notifications and their storage. The key "" belongs to a mistake that can affect
# any section.
_NOTIFICATION_SECTIONS = ("", "alerts", "relay", "run")

_Command = TypeVar("_Command", bound=Callable[..., Any])


class App:
    """The state that click passes to each command."""

    debug: ClassVar[bool] = False

    def __init__(self, config_file: Path | None = None) -> None:
        self.config_file = config_file
        #: Settings by the configuration key that they override; `setting_option` adds them.
        self.flags: dict[str, Setting] = {}

    def config(
        self, ends_for: Callable[[str], bool] | None = None, also: Callable[[Config], object] | None = None
    ) -> Config:
        """Load the configuration with the command's flags, and report problems on stderr.

        If `ends_for` returns True for the key of a problem, call `also` to report further problems, and end
        the command with exit code 2.
        """
        config = load(self.config_file, self.flags)
        mask_site_patterns(config)
        print_notices([*config.ignored, *config.problems])
        if ends_for is not None and any(ends_for(problem.key) for problem in config.problems):
            if also is not None:
                also(config)
            raise click.exceptions.Exit(2)
        return config


def any_key(_key: str) -> bool:
    """Return True for every key, so that a mistake in any key ends the command."""
    return True


def hides_notifications(key: str) -> bool:
    """Return whether a mistake in this key can hide notifications or stored messages from the user.

    Use this function for commands that list messages or send them manually. A mistake in a chat or a route
    does not stop these commands, because the other chats and routes work. Mistakes in keys that are unrelated
    to notifications do not stop the commands either.
    """
    return key not in _CHATS and key.partition(".")[0] in (*_NOTIFICATION_SECTIONS, UNREAD)


def shuts_relay(key: str) -> bool:
    """Return whether a mistake in this key stops the relay. Such keys set the relay's address or access."""
    return key in ("relay.host", "relay.port", "relay.token") or is_about_servers(key)


def setting_option(
    key: str, *names: str, given: Any = None, **attributes: Any
) -> Callable[[_Command], _Command]:
    """Return a decorator that adds an option to a command. The option's value overrides a configuration key.

    For a flag, `given` is the value that the flag sets if this value is not ``True``.
    """

    def keep(context: click.Context, _parameter: click.Parameter, value: Any) -> None:
        if value is not None and value is not False and value != ():
            overriding = Setting(value if given is None else given, names[0])
            context.ensure_object(App).flags[key] = overriding

    return click.option(*names, expose_value=False, callback=keep, **attributes)


def language_option(command: _Command, key: str = "ui.language") -> _Command:
    """Add the language option to a command."""
    about = "Language of the texts (default: en)."
    return setting_option(key, "--language", type=click.Choice(["en", "zh"]), help=about)(command)


def address_options(section: str, host: str, port: str, lowest: int = 0) -> Callable[[_Command], _Command]:
    """Return a decorator that adds the options for a server's address to a command.

    `host` and `port` contain the help text for the options.
    """
    ports = click.IntRange(lowest, 65535)
    address = setting_option(f"{section}.host", "--host", metavar="ADDRESS", help=host)
    number = setting_option(f"{section}.port", "--port", type=ports, help=port)
    return lambda command: address(number(command))


def rules_option(command: _Command) -> _Command:
    """Add the options for additional rule folders and packs to a command."""
    about = "A folder of your own rule pages; can be repeated."
    about_packs = "A pack of additional rules, such as other-frameworks; can be repeated."
    folders = setting_option("rules.dirs", "--rules", multiple=True, type=PATH, metavar="DIR", help=about)
    packs = setting_option("rules.packs", "--rules-pack", multiple=True, metavar="NAME", help=about_packs)
    return folders(packs(command))


paths_argument = click.argument("paths", nargs=-1, required=True, metavar="PATH…")


def catalogue_of(config: Config) -> Catalogue:
    """Load and return the catalogue of valid rule pages. Report broken pages on stderr."""
    from stallwatch_exporter.settings import cache_home
    from stallwatch_rules.pages.catalogue import load_catalogue

    catalogue = load_catalogue(rule_folders(config), cache=cache_home())
    print_notices(catalogue.problems)
    return catalogue


def any_unread(problems: Iterable[InputProblem]) -> bool:
    """Return whether any input could not be read. An empty file among other files does not count."""
    return any(not problem.harmless for problem in problems)


def print_notices(problems: Iterable[object]) -> None:
    """Print each problem as one line on stderr."""
    for problem in problems:
        print_notice(" ".join(str(problem).splitlines()))


def report_wrong_alerts(loaded: Config) -> bool:
    """Report unusable chat URLs, and routes with unknown rules or families. Return whether there are any."""
    if not (loaded["alerts.urls"] or loaded["alerts.routes"]):
        return False  # avoid imports that are usually unnecessary
    from importlib.util import find_spec

    from stallwatch.config.chats import misnamed, names_any, not_loaded, unusable
    from stallwatch.config.handover import alert_settings

    found = []
    if names_any(loaded):
        catalogue = catalogue_of(loaded)
        found = misnamed(loaded, catalogue)
        print_notices(not_loaded(loaded, catalogue))
    if alert_settings(loaded).all_urls and find_spec("apprise") is not None:
        found += unusable(loaded)
    print_notices(found)
    return bool(found)


@contextmanager
def extra(name: str, language: str = "en") -> Iterator[None]:
    """If a library that the block needs is missing, raise a usage error that names the extra to install."""
    try:
        yield
    except ModuleNotFoundError as error:
        missing = say("missing", language, name=str(error.name), extra=name)
        raise click.UsageError(missing) from error


def open_incidents(config: Config) -> IncidentStore:
    """Return the incident database. Raise ``ClickException`` if the database cannot be opened."""
    with extra("alerts", config["ui.language"]):
        from stallwatch.config.handover import open_store
        from stallwatch_alerts.masking import hide_secrets
    try:
        return open_store(config)
    except Exception as error:
        line = (hide_secrets(str(error), config["alerts.incidents_url"]).splitlines() or [""])[0]
        reason = f"{type(error).__name__}: {line}"
        raise click.ClickException(say("no-database", config["ui.language"], reason=reason)) from None


def stop_event() -> threading.Event:
    """Return an event that Control+C and SIGTERM set. These signals then do not end the process."""
    stopped = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopped.set())
    return stopped


# ---------------------------------------------------------------- output


def write_text(path: Path, text: str) -> None:
    """Write a file. Raise ``OSError`` if the file or its folder is a link that belongs to another account."""
    if path.parent.is_symlink() and not is_own(path.parent.lstat(), or_root=True):
        raise OSError(errno.ELOOP, "its folder is a link that belongs to another account", str(path))
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | getattr(os, "O_BINARY", 0)
    if not path.is_symlink() or not is_own(path.lstat(), or_root=True):
        flags |= getattr(os, "O_NOFOLLOW", 0)
    try:
        handle = os.open(path, flags, 0o666)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(error.errno, "it is a link that belongs to another account", str(path)) from None
        raise
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(text)


def say(key: str, language: str, **params: str | int | Message) -> str:
    """Return the text of the message ``cli.<key>`` in this language."""
    from stallwatch_rules import locale

    return locale.say(f"cli.{key}", language, **params)


def local_time(moment: float) -> str:
    """Format a Unix time as local time."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(moment))


def plain_table(*columns: str) -> Table:
    """Return an empty, borderless table that removes terminal control characters from its cells."""
    from rich.table import Table
    from rich.text import Text

    class Plain(Table):
        def add_row(self, *cells: Any, **options: Any) -> None:
            super().add_row(*(Text(one_line(str(cell))) for cell in cells), **options)

    return Plain(*columns, box=None, pad_edge=False)


def one_line(text: str) -> str:
    """Return the text without terminal control characters, tabs, and line breaks."""
    return printable(" ".join(re.split(r"[\t\r\n]+", text)))


def print_line(text: str) -> None:
    """Print a line that contains text from other sources. Remove control characters from the line."""
    click.echo(one_line(text))


def show_table(table: Table) -> bool:
    """If the table has rows, print the table. Return whether the table has rows."""
    from rich.console import Console

    console = Console()
    if not console.is_terminal:
        console.width = 240  # a file or pipe needs no line breaks
    if table.row_count:
        console.print(table, highlight=False, markup=False)
    return bool(table.row_count)


def rendered(show: Callable[[Console], None], *, coloured: bool) -> str:
    """Return the text that `show` prints: in color at the terminal's width, or plain at 100 columns."""
    from rich.console import Console

    text = io.StringIO()
    show(Console(file=text, force_terminal=coloured or None, width=None if coloured else 100))
    if coloured:
        return text.getvalue()
    return "".join(line.rstrip() + "\n" for line in text.getvalue().splitlines())


_WORTH_A_BAR = 32 * 1024 * 1024


@contextmanager
def progress_bar() -> Iterator[Callable[[int, int], None] | None]:
    """Yield a callback that shows the progress of reading, or ``None`` if stderr is not a terminal.

    The bar appears only for large inputs.
    """
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("reading"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    bar = Progress(*columns, console=Console(stderr=True), transient=True)
    task = bar.add_task("reading", total=None, start=True)
    shown = False

    def update(done: int, total: int) -> None:
        nonlocal shown
        if not shown and max(done, total) >= _WORTH_A_BAR:
            bar.start()
            shown = True
        if shown:
            bar.update(task, completed=done, total=total or None)

    try:
        yield update
    finally:
        if shown:
            bar.stop()
