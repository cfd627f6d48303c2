"""What commands share: the configuration in force, the catalogue, options, and how they talk."""

from __future__ import annotations

import io
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import click

from stallwatch.config.handover import rule_folders
from stallwatch.config.loading import UNREAD, Config, Setting, load
from stallwatch_exporter.notices import tell

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from stallwatch_alerts.store import IncidentStore
    from stallwatch_rules.pages.catalogue import Catalogue

__all__ = ["tell"]

CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}

_CHATS = ("alerts.urls", "alerts.routes")
_WAYS_IN = ("relay.host", "relay.port", "relay.token")
# What says who is told, and where it is kept what they were told; "": a mistake that may hide any of them.
_OF_PEOPLE = ("", "alerts", "relay", "run")

language_option = click.option(
    "--language", type=click.Choice(["en", "zh"]), help="Language of the texts (default: en)."
)
_rules_option = click.option(
    "--rules",
    "rule_dirs",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="A folder of your own rule pages; may be repeated.",
)
_rules_pack_option = click.option(
    "--rules-pack",
    multiple=True,
    expose_value=False,
    callback=lambda context, _, packs: context.ensure_object(App).take_packs(packs),
    metavar="NAME",
    help="A pack of further rules, such as other-frameworks; may be repeated.",
)
_Command = TypeVar("_Command", bound=Callable[..., Any])


def rules_option(command: _Command) -> _Command:
    """Give a command the options that name further rules."""
    return _rules_option(_rules_pack_option(command))


class App:
    """The command's view of the world; handed to commands by click."""

    debug: ClassVar[bool] = False

    def __init__(self, config_file: Path | None = None) -> None:
        self.config_file = config_file
        self.packs: tuple[str, ...] = ()  #: of rules, as `--rules-pack` names them

    def take_packs(self, packs: tuple[str, ...]) -> None:
        """Take what `--rules-pack` names, for every configuration that the command asks for."""
        self.packs = packs

    def config(self, **flags: Any) -> Config:
        """The configuration with these flags (``exporter__port=1`` for ``exporter.port``) over it.

        Flags that were not given are ``None``. What is wrong is told; the caller decides whether to go on.
        """
        given = {
            name.replace("__", "."): Setting(value, f"--{name.split('__')[1].replace('_', '-')}")
            for name, value in flags.items()
            if value is not None and value != ()
        }
        if self.packs:
            given["rules.packs"] = Setting(self.packs, "--rules-pack")
        config = load(self.config_file, given)
        tell_all([*config.ignored, *config.problems])
        return config

    def sound_config(self, **flags: Any) -> Config:
        """As ``config``, for commands that are of no use with a wrong one: they end with exit code 2."""
        config = self.config(**flags)
        if config.problems:
            raise click.exceptions.Exit(2)
        return config

    def config_of_chats(self, *, also: Callable[[Config], object] | None = None, **flags: Any) -> Config:
        """As ``sound_config``, for whoever asks what people were told, and sends by hand.

        What is wrong with a chat or a route is told and no reason to stop: the others are in use. Nor is what
        has nothing to do with people. Before it stops, `also` tells what else is wrong.
        """
        config = self.config(**flags)
        if any(_hides_people(problem.key) for problem in config.problems):
            if also is not None:
                also(config)
            raise click.exceptions.Exit(2)
        return config

    def config_of_relay(self, **flags: Any) -> Config:
        """As ``config``, for the relay, without which nobody hears of anything.

        It stops only for what is wrong with where it listens, and to whom.
        """
        config = self.config(**flags)
        if any(problem.key in _WAYS_IN for problem in config.problems):
            raise click.exceptions.Exit(2)
        return config


def _hides_people(key: str) -> bool:
    return key not in _CHATS and key.partition(".")[0] in (*_OF_PEOPLE, UNREAD)


def catalogue_of(config: Config) -> Catalogue:
    """All rule pages; those that are broken are told and left out."""
    from stallwatch_exporter.settings import cache_home
    from stallwatch_rules.pages.catalogue import load_catalogue

    catalogue = load_catalogue(rule_folders(config), cache=cache_home())
    tell_all(catalogue.problems)
    return catalogue


def tell_all(problems: Iterable[object]) -> None:
    """One line per problem."""
    for problem in problems:
        tell(" ".join(str(problem).splitlines()))


def tell_wrong_alerts(loaded: Config) -> bool:
    """Tell of names in routes that no rule page has, and of URLs of which no channel can be made.

    Returns whether there are any.
    """
    if not (loaded["alerts.urls"] or loaded["alerts.routes"]):
        return False  # the usual case needs nothing of what is imported below
    from importlib.util import find_spec

    from stallwatch.config.chats import misnamed, names_any, unusable
    from stallwatch.config.handover import alert_settings

    found = misnamed(loaded, catalogue_of(loaded)) if names_any(loaded) else []
    if alert_settings(loaded).all_urls and find_spec("apprise") is not None:
        found += unusable(loaded)
    tell_all(found)
    return bool(found)


@contextmanager
def extra(name: str, language: str = "en") -> Iterator[None]:
    """Around imports: if a library is missing, the user is told which extra of Stallwatch brings it."""
    try:
        yield
    except ModuleNotFoundError as error:
        missing = say("missing", language, name=str(error.name), extra=name)
        raise click.UsageError(missing) from error


def open_incidents(config: Config) -> IncidentStore:
    """The incident database; a ``ClickException`` if it cannot be opened."""
    with extra("alerts", config["ui.language"]):
        from stallwatch.config.handover import open_store
        from stallwatch_alerts.masking import hide_secrets
    try:
        return open_store(config)
    except Exception as error:
        line = (hide_secrets(str(error), config["alerts.incidents_url"]).splitlines() or [""])[0]
        reason = f"{type(error).__name__}: {line}"
        raise click.ClickException(say("no-database", config["ui.language"], reason=reason)) from None


# ---------------------------------------------------------------- output


def say(key: str, language: str, **params: str | int) -> str:
    """The words of ``cli.<key>``."""
    from stallwatch_rules import locale

    return locale.say(f"cli.{key}", language, **params)


def local_time(moment: float) -> str:
    """A Unix time as people here read it."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(moment))


def plain_table(*columns: str) -> Table:
    """A table without lines around its cells."""
    from rich.table import Table

    return Table(*columns, box=None, pad_edge=False)


def show_table(table: Table) -> bool:
    """Print it, unless it has no rows; return whether it has any."""
    from rich.console import Console

    console = Console()
    if not console.is_terminal:
        console.width = 240  # a file or pipe has no edge to wrap at
    if table.row_count:
        console.print(table, highlight=False, markup=False)
    return bool(table.row_count)


def rendered(show: Callable[[Console], None], *, coloured: bool) -> str:
    """What `show` prints: coloured and as wide as the terminal, or plain and 100 columns wide."""
    from rich.console import Console

    text = io.StringIO()
    show(Console(file=text, force_terminal=coloured or None, width=None if coloured else 100))
    if coloured:
        return text.getvalue()
    return "".join(line.rstrip() + "\n" for line in text.getvalue().splitlines())


_WORTH_A_BAR = 32 * 1024 * 1024


@contextmanager
def progress_bar() -> Iterator[Callable[[int, int], None] | None]:
    """Tells how much has been read, on a terminal and only where it takes long enough to be read."""
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
