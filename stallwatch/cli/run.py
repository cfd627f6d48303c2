"""Implement ``stallwatch run`` and ``stallwatch tail``: watch a run."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from stallwatch.cli.context import (
    FOLDER,
    App,
    address_options,
    catalogue_of,
    language_option,
    print_notice,
    rules_option,
    setting_option,
)
from stallwatch.config.keys import BY_NAME
from stallwatch.config.values import BadValue, from_text

if TYPE_CHECKING:
    from stallwatch.cli.watching import Destinations
    from stallwatch.config.loading import Config
    from stallwatch_rules.pages.catalogue import Catalogue

_Command = TypeVar("_Command", bound=Callable[..., Any])


def _reaction(text: str) -> str:
    try:
        return str(from_text(BY_NAME["stall.on_stall"], text, Path()))
    except BadValue as error:
        raise click.BadParameter(str(error)) from None


def watch_options(command: _Command) -> _Command:
    """Add the options for watching, such as ``--name``, ``--join``, and ``--port``, to a command."""
    announce = "Write a target file for Prometheus (file_sd_configs) to this folder."
    belongs = "Name of the run across several hosts, if no scheduler identifies the run."
    merger = "The agent or service that merges the reports of all hosts (default: the first host's agent)."
    about = "What to do if the run stalls: report (default), abort, or 'command LINE'."
    for option in (
        click.option("--no-metrics", is_flag=True, help="Do not serve /metrics."),
        setting_option("stall.on_stall", "--on-stall", type=_reaction, metavar="ACTION", help=about),
        setting_option("exporter.sd_dir", "--sd-dir", type=FOLDER, metavar="DIR", help=announce),
        address_options(
            "exporter",
            "Address on which to serve /metrics (default: 127.0.0.1).",
            "Port on which to serve /metrics (default: 19400; 0: any).",
        ),
        setting_option("join.address", "--join", metavar="HOST:PORT", help=merger),
        setting_option("join.run", "--run", metavar="NAME", help=belongs),
        click.option(
            "--name", metavar="NAME", help="Name of the run (default: the script's name and the time)."
        ),
    ):
        command = option(command)
    return command


@click.command(context_settings={"allow_interspersed_args": False})
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- COMMAND…")
@watch_options
@setting_option(
    "run.probe",
    "--no-probe",
    given=False,
    is_flag=True,
    help="Do not load a probe into the ranks; watch only the output.",
)
@setting_option(
    "run.fail_on_finding",
    "--fail-on-finding",
    is_flag=True,
    help="Exit with 1 if the run failed although the command returned 0.",
)
@language_option
@rules_option
@click.pass_obj
def run(app: App, command: tuple[str, ...], name: str | None, no_metrics: bool) -> None:
    """Run a command and watch it, without code changes.

    \b
    stallwatch run -- torchrun --nproc-per-node 8 --tee 3 train.py
    stallwatch run --name sft-7b -- deepspeed train.py --deepspeed ds.json

    The command's output passes through unchanged. When Stallwatch detects a stall, it shows the stall and
    notifies the configured chats. At the end, Stallwatch prints how the command ended and diagnoses any
    problem. Metrics are available at http://127.0.0.1:19400/metrics. The exit code is the exit code of the
    command, unless --fail-on-finding is set.
    """
    from stallwatch_exporter.malloc_arenas import check_address_space

    try:
        check_address_space()
        # Report mistakes in the configuration, but start the training nevertheless.
        config = app.config()
        watched, destinations = _watched_command(config, command, name, not no_metrics)
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        print_notice(f"the run cannot be watched ({reason}); the command runs without Stallwatch")
        raise click.exceptions.Exit(_unwatched(command)) from None
    from stallwatch_exporter.running.command import reporting

    with reporting():  # SIGTERM must not prevent the last messages
        try:
            code = watched()
        finally:
            destinations.close()
    if code == 0 and destinations.run_failed and config["run.fail_on_finding"]:
        code = 1
    raise click.exceptions.Exit(code)


def _watched_command(
    config: Config, command: Sequence[str], name: str | None, metrics: bool
) -> tuple[Callable[[], int], Destinations]:
    """Return two values: a function that runs and watches the command, and the destinations of incidents."""
    from stallwatch_exporter.running.command import run_command
    from stallwatch_rules.pages.catalogue import Catalogue

    try:
        catalogue = catalogue_of(config)
    except Exception as error:
        print_notice(
            f"the rules cannot be read ({type(error).__name__}: {error}); the run continues without them"
        )
        catalogue = Catalogue.of([])
    return _watched(run_command, command, config, catalogue, name=name, metrics=metrics)


def _watched(
    watch: Callable[..., int], what: Sequence[str], config: Config, catalogue: Catalogue, **options: Any
) -> tuple[Callable[[], int], Destinations]:
    """Return two values: a function that watches a command or files, and the destinations of incidents."""
    from stallwatch.cli.watching import Destinations
    from stallwatch.config.handover import exporter_settings
    from stallwatch_exporter.malloc_arenas import limit_malloc_arenas
    from stallwatch_exporter.notices import guard_threads
    from stallwatch_exporter.private import keep_private

    limit_malloc_arenas()
    settings = exporter_settings(config)
    keep_private(settings.home)
    destinations = Destinations(config, catalogue)
    guard_threads(destinations.notice)
    options |= {"notice": destinations.notice, "on_end": destinations.ended, "engine": destinations.engine()}
    watched = functools.partial(watch, list(what), settings, destinations.sinks, catalogue, **options)
    return watched, destinations


def _unwatched(command: Sequence[str]) -> int:
    from stallwatch_exporter.running.capture import CommandProblem, run_unwatched

    try:
        return run_unwatched(command)
    except CommandProblem as problem:
        print_notice(str(problem))
        return problem.exit_code


@click.command()
@click.argument("globs", nargs=-1, required=True, metavar="GLOB…")
@click.option(
    "--once", is_flag=True, help="Diagnose the current content of the files, as stallwatch diagnose does."
)
@click.option(
    "--until-idle",
    type=float,
    metavar="SECONDS",
    help="Exit if the files have not grown for this many seconds.",
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
    no_metrics: bool,
) -> None:
    """Watch a run that has already started, by reading its log files. To stop, press Control+C.

    \b
    stallwatch tail 'logs/*.log'
    stallwatch tail --name sft-7b slurm-1234.out

    GLOB is a file, a folder, or a quoted pattern; files that appear later are also watched. From lines that
    are already in the files, Stallwatch learns the usual step durations, but does not open incidents for
    these lines. To continue where an earlier stallwatch tail stopped, specify the same --name.

    Exit code: 0; with --once, as for diagnose: 1 if the run failed or stalled, 2 if a file could not be read.
    """
    from stallwatch_exporter.tailing.follow import tail_files

    config = app.config()
    options = {"name": name, "once": once, "until_idle": until_idle, "metrics": not no_metrics}
    watched, destinations = _watched(tail_files, globs, config, catalogue_of(config), **options)
    try:
        code = watched()
    finally:
        destinations.close()
    raise click.exceptions.Exit(code)
