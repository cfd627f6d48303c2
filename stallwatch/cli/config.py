"""``stallwatch config``: what is in force, and where it comes from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from stallwatch.cli.context import App, plain_table, show_table, tell, tell_wrong_alerts
from stallwatch.config.keys import KEYS, Key


@click.group()
def config() -> None:
    """See the configuration in force."""


@config.command()
@click.pass_obj
def show(app: App) -> None:
    """Print every key, its value in force and where that comes from. Secrets are masked.

    Later wins: default, stallwatch.toml, environment, flags. Exit code 2 when something in it is wrong.
    """
    loaded = app.config()
    table = plain_table("key", "value", "from")
    for key in KEYS:
        setting = loaded.settings[key.full_name]
        style = "dim" if setting.source == "default" else ""
        table.add_row(key.full_name, _shown(key, setting.value), setting.source, style=style)
    show_table(table)
    for ignored in loaded.ignored:
        click.echo(f"file: {ignored.file} ({ignored.message})")
    if loaded.file is not None:
        click.echo(f"file: {loaded.file}")
    elif not loaded.ignored:
        tell("no stallwatch.toml was found; the defaults work without one")
    if tell_wrong_alerts(loaded) or loaded.problems:
        raise click.exceptions.Exit(2)


def _shown(key: Key, value: Any) -> Any:
    from rich.text import Text

    from stallwatch_alerts.masking import mask_url

    if key.kind == "routes":
        return Text("; ".join(map(repr, value)) or "-")
    if key.secret and value:
        value = tuple(map(mask_url, value)) if isinstance(value, tuple) else mask_url(value)
    if isinstance(value, tuple):
        return Text(", ".join(map(str, value)) or "-")
    return Text("-" if value in (None, "") else str(value) if isinstance(value, Path) else f"{value}")
