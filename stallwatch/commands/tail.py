"""``stallwatch tail``: a run that is already up, watched by the files it writes."""

from __future__ import annotations

from pathlib import Path

import click

from stallwatch.commands.context import App, catalogue_of, language_option, rules_option
from stallwatch.commands.watch_options import watch_options


@click.command()
@click.argument("globs", nargs=-1, required=True, metavar="GLOB…")
@click.option("--once", is_flag=True, help="Read what is there, say what it tells, and end.")
@click.option(
    "--until-idle", type=float, metavar="SECONDS", help="End when nothing was written for this long."
)
@watch_options
@language_option
@rules_option
@click.pass_obj
def tail(
    app: App,
    globs: tuple[str, ...],
    once: bool,
    until_idle: float | None,
    name: str | None,
    host: str | None,
    port: int | None,
    on_stall: str | None,
    no_metrics: bool,
    language: str | None,
    rule_dirs: tuple[Path, ...],
) -> None:
    """Watch a run that is already up, from its log files. Ends with Ctrl-C.

    \b
    stallwatch tail 'logs/*.log'
    stallwatch tail --name sft-7b slurm-1234.out

    GLOB is a file, a folder or a quoted pattern; files that appear later are picked up. What the files hold
    already teaches the rhythm and raises no incident. With --name, a second tail goes on where the first
    ended.
    """
    from stallwatch.handover import exporter_settings
    from stallwatch.watching import Listeners
    from stallwatch_exporter.running.command import tail_files

    config = app.config(
        exporter__host=host,
        exporter__port=port,
        stall__on_stall=on_stall,
        ui__language=language,
        rules__dirs=rule_dirs,
    )
    catalogue = catalogue_of(config)
    listeners = Listeners(config, catalogue)
    try:
        code = tail_files(
            list(globs),
            exporter_settings(config),
            listeners.sinks,
            catalogue,
            name=name,
            once=once,
            until_idle=until_idle,
            metrics=not no_metrics,
            notice=listeners.notice,
            on_end=listeners.ended,
        )
    finally:
        listeners.close()
    raise click.exceptions.Exit(code)
