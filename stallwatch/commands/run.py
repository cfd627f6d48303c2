"""``stallwatch run``: a command, watched."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from stallwatch.commands.context import App, catalogue_of, language_option, rules_option, tell
from stallwatch.commands.watch_options import watch_options

if TYPE_CHECKING:
    from stallwatch.config import Config
    from stallwatch.watching import Listeners


@click.command(context_settings={"allow_interspersed_args": False})
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- COMMAND…")
@watch_options
@click.option("--no-probe", is_flag=True, help="Put no probe into the ranks: watch the output only.")
@click.option(
    "--fail-on-finding", is_flag=True, help="Exit with 1 if the run failed though the command returned 0."
)
@language_option
@rules_option
@click.pass_obj
def run(
    app: App,
    command: tuple[str, ...],
    name: str | None,
    host: str | None,
    port: int | None,
    on_stall: str | None,
    no_metrics: bool,
    no_probe: bool,
    fail_on_finding: bool,
    language: str | None,
    rule_dirs: tuple[Path, ...],
) -> None:
    """Run a command and watch it. No code changes.

    \b
    stallwatch run -- torchrun --nproc-per-node 8 --tee 3 train.py
    stallwatch run --name sft-7b -- deepspeed train.py --deepspeed ds.json

    Its output passes through untouched. A stall is shown and sent to the configured chats when it is found;
    at the end it says how the command ended, with the diagnosis under it. /metrics is on
    http://127.0.0.1:19400/metrics. The exit code is the command's own, unless --fail-on-finding is given.
    """
    try:
        # A mistake in the configuration is told; the training starts all the same.
        config = app.config(
            exporter__host=host,
            exporter__port=port,
            stall__on_stall=on_stall,
            run__probe=False if no_probe else None,
            run__fail_on_finding=True if fail_on_finding else None,
            ui__language=language,
            rules__dirs=rule_dirs,
        )
        watched, listeners = _watched(config, command, name, not no_metrics)
    except Exception as error:
        tell(f"the run cannot be watched ({type(error).__name__}: {error}); the command runs without")
        raise click.exceptions.Exit(_unwatched(command)) from None
    from stallwatch_exporter.running.command import reporting

    with reporting():  # SIGTERM must not take the last messages with it
        try:
            code = watched()
        finally:
            listeners.close()
    if code == 0 and listeners.run_failed and config["run.fail_on_finding"]:
        code = 1
    raise click.exceptions.Exit(code)


def _watched(
    config: Config, command: Sequence[str], name: str | None, metrics: bool
) -> tuple[Callable[[], int], Listeners]:
    """All that the watching needs, made before the command starts."""
    from stallwatch.handover import exporter_settings
    from stallwatch.watching import Listeners
    from stallwatch_exporter.running.command import run_command
    from stallwatch_rules.pages.catalogue import Catalogue

    try:
        catalogue = catalogue_of(config)
    except Exception as error:
        tell(f"the rules cannot be read ({type(error).__name__}: {error}); the run goes on without them")
        catalogue = Catalogue.of([])
    settings = exporter_settings(config)
    listeners = Listeners(config, catalogue)
    watched = functools.partial(
        run_command,
        list(command),
        settings,
        listeners.sinks,
        catalogue,
        name=name,
        metrics=metrics,
        notice=listeners.notice,
        on_end=listeners.ended,
    )
    return watched, listeners


def _unwatched(command: Sequence[str]) -> int:
    from stallwatch_exporter.running.capture import CommandProblem, run_unwatched

    try:
        return run_unwatched(command)
    except CommandProblem as problem:
        tell(str(problem))
        return problem.exit_code
