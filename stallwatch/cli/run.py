"""``stallwatch run`` and ``stallwatch tail``: a run, watched."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from stallwatch.cli.context import App, catalogue_of, language_option, rules_option, tell
from stallwatch.config.keys import BY_NAME
from stallwatch.config.values import BadValue, from_text

if TYPE_CHECKING:
    from stallwatch.cli.watching import Listeners
    from stallwatch.config.loading import Config

_Function = TypeVar("_Function", bound=Callable[..., Any])


def _reaction(_context: click.Context, _parameter: click.Parameter, value: str | None) -> str | None:
    try:
        return None if value is None else str(from_text(BY_NAME["stall.on_stall"], value, Path()))
    except BadValue as error:
        raise click.BadParameter(str(error)) from None


def watch_options(function: _Function) -> _Function:
    """``--name``, ``--host``, ``--port``, ``--on-stall``, ``--no-metrics``."""
    for option in reversed(
        (
            click.option(
                "--name", metavar="NAME", help="The run's name (default: the script's and the time)."
            ),
            click.option("--host", metavar="ADDRESS", help="Where /metrics listens (default: 127.0.0.1)."),
            click.option("--port", type=click.IntRange(0, 65535), help="Its port (default: 19400; 0: any)."),
            click.option(
                "--on-stall",
                callback=_reaction,
                metavar="ACTION",
                help="report (default), abort, or 'command LINE': what to do at a stall.",
            ),
            click.option("--no-metrics", is_flag=True, help="Serve no /metrics."),
        )
    ):
        function = option(function)
    return function


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
    from stallwatch.cli.watching import Listeners
    from stallwatch.config.handover import exporter_settings
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
    from stallwatch.cli.watching import Listeners
    from stallwatch.config.handover import exporter_settings
    from stallwatch_exporter.tailing.follow import tail_files

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
