"""``stallwatch run``: a command, watched."""

from __future__ import annotations

import functools
from pathlib import Path

import click

from stallwatch.commands.context import App, catalogue_of, language_option, rules_option, tell
from stallwatch.commands.watch_options import watch_options


@click.command(context_settings={"allow_interspersed_args": False})
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- COMMAND…")
@watch_options
@language_option
@rules_option
@click.pass_obj
def run(
    app: App,
    command: tuple[str, ...],
    name: str | None,
    host: str | None,
    port: int | None,
    no_metrics: bool,
    language: str | None,
    rule_dirs: tuple[Path, ...],
) -> None:
    """Run a command and watch it. No code changes.

    \b
    stallwatch run -- torchrun --nproc-per-node 8 --tee 3 train.py
    stallwatch run --name sft-7b -- deepspeed train.py --deepspeed ds.json

    Its output passes through untouched. A stall is shown and sent to the configured chats when it is found;
    at the end it says how the command ended, with the diagnosis under it. /metrics is on
    http://127.0.0.1:19400/metrics. The exit code is the command's own.
    """
    from stallwatch.handover import exporter_settings
    from stallwatch.watching import Listeners, print_end
    from stallwatch_exporter.command import run_command
    from stallwatch_rules.catalogue import Catalogue

    # A mistake in the configuration is told; the training starts all the same.
    config = app.config(
        exporter__host=host, exporter__port=port, ui__language=language, rules__dirs=rule_dirs
    )
    try:
        catalogue = catalogue_of(config)
    except Exception as error:
        tell(f"the rules cannot be read ({type(error).__name__}: {error}); the run goes on without them")
        catalogue = Catalogue.of([])
    listeners = Listeners(config, catalogue)
    try:
        code = run_command(
            list(command),
            exporter_settings(config),
            listeners.sinks,
            catalogue,
            name=name,
            metrics=not no_metrics,
            on_end=functools.partial(print_end, config["ui.language"]),
        )
    finally:
        listeners.close()
    raise click.exceptions.Exit(code)
