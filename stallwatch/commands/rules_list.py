"""``stallwatch rules list``: every rule, for readers a table by families, for programs a line each."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

import click

from stallwatch.commands.context import App, catalogue_of, rules_option

if TYPE_CHECKING:
    from rich.console import Console

    from stallwatch_rules.pages.page import RulePage

_STYLES = {"fatal": "red", "degrading": "yellow", "harmless": "green", "by-progress": "cyan"}
_STATUS = ("stable", "incubating", "retired")


@click.command(name="list")
@click.option(
    "--family", "families", multiple=True, metavar="NAME", help="Only this family; may be repeated."
)
@click.option(
    "--status", "states", multiple=True, type=click.Choice(_STATUS), help="Only rules of this status."
)
@rules_option
@click.pass_obj
def list_rules(
    app: App, families: tuple[str, ...], states: tuple[str, ...], rule_dirs: tuple[Path, ...]
) -> None:
    """List every rule: id, family, role, harm, status, title.

    On a terminal it is a table for each family; elsewhere the columns are separated by tabs.

    \b
    stallwatch rules list --family collectives
    stallwatch rules list --status incubating
    """
    config = app.config(rules__dirs=rule_dirs)
    catalogue = catalogue_of(config)
    pages = sorted(catalogue.pages.values(), key=lambda page: (page.family, page.id))
    _refuse_unknown(families, sorted({page.family for page in pages}))
    chosen = [
        page
        for page in pages
        if (not families or page.family in families) and (not states or page.status in states)
    ]
    language = config["ui.language"]
    if sys.stdout.isatty():
        from rich.console import Console

        print_tables(chosen, Console(), language)
    else:
        for page in chosen:
            columns = (page.id, page.family, page.role, page.harm, page.status, _title(page, language))
            click.echo("\t".join(columns))
    if config.problems or catalogue.problems:
        raise click.exceptions.Exit(2)


def print_tables(pages: Sequence[RulePage], console: Console, language: str = "en") -> None:
    """A table for each family, as wide as the terminal; only titles are wrapped."""
    from rich.table import Table
    from rich.text import Text

    width = max((len(page.id) for page in pages), default=0)
    for family, members in groupby(pages, key=lambda page: page.family):
        rules = list(members)
        table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
        table.add_column(no_wrap=True, min_width=min(width, max(20, console.width // 2)), overflow="fold")
        table.add_column(overflow="fold", ratio=1)
        for page in rules:
            about = f"{page.role}, {page.harm}" + ("" if page.status == "stable" else f", {page.status}")
            told = Text.assemble(_title(page, language), "\n", (about, f"dim {_STYLES[page.harm]}"))
            table.add_row(Text(page.id, style="bold"), told)
        console.print(Text(f"{family} ({len(rules)})", style="bold underline"))
        console.print(table, highlight=False)
        console.print()


def _refuse_unknown(families: Sequence[str], known: Sequence[str]) -> None:
    for family in families:
        if family not in known:
            near = difflib.get_close_matches(family, known, n=1, cutoff=0.4)
            hint = f"did you mean {near[0]}? " if near else ""
            raise click.UsageError(f"no family {family!r}; {hint}they are: {', '.join(known)}")


def _title(page: RulePage, language: str) -> str:
    return page.title_zh if language == "zh" else page.title
