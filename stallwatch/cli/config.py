"""Implement ``stallwatch config``: show the effective configuration and the source of each value."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from stallwatch.cli.context import (
    PATH,
    App,
    Group,
    plain_table,
    print_notice,
    report_wrong_alerts,
    show_table,
)
from stallwatch.config import trust as trusting
from stallwatch.config.keys import KEYS, Key
from stallwatch_rules.text.controls import printable


@click.group(cls=Group)
def config() -> None:
    """Show the effective configuration, and trust files that other accounts can write to."""


@config.command()
@click.pass_obj
def show(app: App) -> None:
    """Print every key with its effective value and its source. Secrets are masked.

    Later sources take precedence: default, stallwatch.toml, environment, flags. Exit code: 2 if the
    configuration has a mistake.
    """
    loaded = app.config()
    table = plain_table("key", "value", "from")
    for key in KEYS:
        setting = loaded.settings[key.full_name]
        style = "dim" if setting.source == "default" else ""
        table.add_row(key.full_name, _shown(key, setting.value), setting.source, style=style)
    show_table(table)
    for ignored in loaded.ignored:
        what = "rules" if ignored.key == "rules.dirs" else "file"
        click.echo(printable(f"{what}: {ignored.file} ({ignored.message})"))
    if loaded.file is not None:
        click.echo(printable(f"file: {loaded.file}"))
    elif not loaded.ignored:
        print_notice("no stallwatch.toml was found; Stallwatch does not require this file")
    if report_wrong_alerts(loaded) or loaded.problems:
        raise click.exceptions.Exit(2)


@config.command()
@click.argument("file", required=False, type=PATH, metavar="[FILE]")
@click.option("--revoke", is_flag=True, help="Stop trusting FILE.")
def trust(file: Path | None, revoke: bool) -> None:
    """Trust FILE in its current state, or list the trusted files.

    If another account could have written the stallwatch.toml in the current folder, Stallwatch ignores the
    file. After you trust the file, Stallwatch reads the file as long as its path and content do not change.

    \b
    stallwatch config trust stallwatch.toml
    stallwatch config trust
    stallwatch config trust --revoke stallwatch.toml

    Exit code: 1 if FILE cannot be trusted or, with --revoke, was not trusted; otherwise 0.
    """
    if file is None:
        if revoke:
            raise click.UsageError("--revoke requires FILE: specify the file to stop trusting")
        for path, digest in sorted(trusting.trusted_files().items()):
            click.echo(printable(f"{trusting.state_of(path, digest):8} {path}"))
        return
    try:
        if not revoke:
            click.echo(printable(f"trusted: {trusting.trust(file)}, until it changes"))
        elif trusting.revoke(file):
            click.echo(printable(f"no longer trusted: {file.absolute()}"))
        else:
            raise click.ClickException(
                f"{file.absolute()}: the file was not trusted; to list trusted files, run"
                " stallwatch config trust"
            )
    except trusting.Untrusted as reason:
        raise click.ClickException(f"{file}: cannot be trusted: {reason}") from None
    except OSError as error:
        raise click.ClickException(f"{error.filename or file}: {error.strerror}") from None


def _shown(key: Key, value: Any) -> str:
    from stallwatch_alerts.masking import mask_url

    if key.kind == "routes":
        return "; ".join(map(repr, value)) or "-"
    if key.secret and value:
        value = tuple(map(mask_url, value)) if isinstance(value, tuple) else mask_url(value)
    if isinstance(value, tuple):
        return ", ".join(map(str, value)) or "-"
    return "-" if value in (None, "") else str(value)
