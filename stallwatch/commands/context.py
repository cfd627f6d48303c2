"""What commands share: the configuration in force, the catalogue, and how we talk on stderr."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import click

from stallwatch.config import UNREAD, Config, Setting, load
from stallwatch_exporter.notices import tell

if TYPE_CHECKING:
    from stallwatch_rules.pages.catalogue import Catalogue

__all__ = [
    "CONTEXT",
    "App",
    "catalogue_of",
    "language_option",
    "rule_folders",
    "rules_option",
    "tell",
    "tell_all",
]

_Command = TypeVar("_Command", bound=Callable[..., Any])

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
    callback=lambda context, _, packs: context.find_object(App).take_packs(packs),
    metavar="NAME",
    help="A pack of further rules, such as other-frameworks; may be repeated.",
)


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


def rule_folders(config: Config) -> list[Path]:
    """Return the folders of rules beside the packaged catalogue: the packs, then the user's own."""
    from stallwatch_rules.pages.catalogue import folder_of_pack

    return [*map(folder_of_pack, config["rules.packs"]), *config["rules.dirs"]]


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
