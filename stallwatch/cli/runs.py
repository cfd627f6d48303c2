"""Implement ``stallwatch runs``, ``replay``, and ``demo``: list runs and replay recorded runs."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from stallwatch.cli.context import PATH, App, local_time, one_line, plain_table, print_notice, show_table

if TYPE_CHECKING:
    from stallwatch_exporter.runs.runfolder import AgentInfo


_COLUMNS = ("state", "started", "lasted", "ended", "metrics", "hosts")
_NOTHING = "-"  #: the text of an empty cell; on a terminal, columns without any other text are omitted
#: The state of a run is the first state in ``_WORST`` that one of its hosts has.
_SILENT = ("gone", "stale")
_WORST = ("failed", "stalled", *_SILENT, "interrupted", "training", "starting", "unwatched", "finished")
_SHOWN = {"gone": "agent gone", "stale": "agent gone", "unwatched": "not watched"}


@click.command()
@click.argument("run", required=False, metavar="[RUN]")
@click.pass_obj
def runs(app: App, run: str | None) -> None:
    """List the runs of this machine.

    The list shows each run's state, start, duration, ending, metrics address, and hosts, newest first. If you
    specify RUN, the list has one line for each host of that run and shows the folder on that host. On a
    terminal, the output is a table. Otherwise, tabs separate the columns.
    """
    from stallwatch_exporter.runs.runfolder import by_run, kept_runs

    config = app.config()
    home = config["run.home"]
    kept = [(folder, _with_end(info, folder)) for folder, info in kept_runs(home)]
    if run is not None:
        rows = [_row(str(folder), [info]) for folder, info in kept if run in (info.run, info.folder)]
    else:
        rows = [_row(group[0][1].run, [info for _, info in group]) for group in by_run(kept)]
    if any(problem.key == "run.home" for problem in config.problems):
        pass  # the problem is already reported; this folder cannot contain runs
    elif not rows and run is not None:
        raise click.UsageError(f"no run in {home} is named {run}; to list all runs, run stallwatch runs")
    elif not rows:
        print_notice(f"no runs in {home} yet; to start a run, use stallwatch run -- COMMAND")
    elif sys.stdout.isatty():
        heads = ("run" if run is None else "folder", *_COLUMNS)
        places = [place for place in range(len(heads)) if any(row[place] != _NOTHING for row in rows)]
        table = plain_table(*(heads[place] for place in places))
        # Do not truncate names, because default names differ only in their last characters.
        table.columns[0].no_wrap, table.columns[0].overflow = run is None, "fold"
        for row in rows:
            table.add_row(*(row[place] for place in places))
        show_table(table)
    else:
        for row in rows:
            click.echo("\t".join(map(one_line, row)))
    raise click.exceptions.Exit(2 if config.problems else 0)


def _with_end(info: AgentInfo, folder: Path) -> AgentInfo:
    """Return a run's record, completed with facts from other files in the run's folder.

    If a full disk prevented storing the end, take the end from the incidents. If the agent was killed, take
    the time of its last write from its copies of the output.
    """
    from stallwatch_exporter.postmortem.recorded import recorded_end
    from stallwatch_exporter.runs.run_state import last_sign
    from stallwatch_exporter.runs.runfolder import agent_alive
    from stallwatch_exporter.watching.incidents import read_incidents

    if info.ended_at is not None or agent_alive(info):
        return info
    end = recorded_end(read_incidents(folder), info.started_at)
    if end is None:
        return msgspec.structs.replace(info, updated_at=last_sign(info, folder))
    return msgspec.structs.replace(info, ended_at=end.updated_at, ending=end.ending, state="failed")


def _row(name: str, infos: list[AgentInfo]) -> tuple[str, ...]:
    """Return the table row of a run, which combines the records of all the run's agents."""
    from stallwatch_exporter.runs.run_state import state_of
    from stallwatch_rules.locale import duration_text
    from stallwatch_rules.text.redact import redact

    states = [(state_of(info, time.time()), info) for info in infos]
    state, info = min(states, key=lambda each: _WORST.index(each[0]))
    silent = [each for known, each in states if known in _SILENT]
    reporting = [each for each in infos if each.ended_at is None and each not in silent]
    ending = _ending(info)
    if silent and info.ended_at is None:
        last = (min if reporting else max)(silent, key=lambda each: each.updated_at)
        ending = (
            f"{f'{last.host_in_run} ' if reporting else ''}not heard from since {local_time(last.updated_at)}"
        )
    started = min(each.started_at for each in infos)
    ended = time.time() if reporting else max(each.ended_at or each.updated_at for each in infos)
    metrics = next((each.endpoint for each in reporting if each.endpoint), _NOTHING)
    if any(each.partial or each.gaps for each in infos):
        ending += ", partial record"
    hosts = dict.fromkeys(each.host_in_run for each in infos)
    where = f"{len(hosts)} hosts" if len(hosts) > 1 else next(iter(hosts))
    shown, lasted = _SHOWN.get(state, state), duration_text(max(0.0, ended - started))
    return redact(name), shown, local_time(started), lasted, ending, metrics, where


def _ending(info: AgentInfo) -> str:
    from stallwatch_rules.endings import ending_name
    from stallwatch_rules.locale import render

    ending = info.ending
    if ending is None:
        return _NOTHING
    name = ending.kind if ending.kind == "unknown" else render(ending_name(ending))
    return f"{name} (exit code {ending.exit_code})" if ending.exit_code else name


@click.command()
@click.argument("folder", type=PATH)
@click.option(
    "--speed",
    type=float,
    default=1.0,
    show_default=True,
    help="Speed of the replay, as a multiple of the original speed.",
)
@click.option(
    "--max-gap", type=float, metavar="SECONDS", help="Shorten longer pauses in the output to this time."
)
def replay(folder: Path, speed: float, max_gap: float | None) -> None:
    """Replay the output of a recorded run.

    The command prints the output of the run, by default with the original timing, and exits with the run's
    exit code. FOLDER is a run's folder that `stallwatch run` wrote.

    \b
    stallwatch run -- stallwatch replay ~/.local/state/stallwatch/runs/myrun --speed 10
    """
    from stallwatch_exporter.runs.replay import NoRecording
    from stallwatch_exporter.runs.replay import replay as print_again

    try:
        code = print_again(folder, speed, max_gap=max_gap)
    except (NoRecording, ValueError, OSError) as error:
        if isinstance(error, OSError) and error.filename is None:
            raise  # a failed write to standard output, which the entry point reports
        raise click.UsageError(
            f"{error}; specify the path of a run's folder, such as a folder under runs/ in the state folder"
        ) from error
    raise click.exceptions.Exit(code)


@click.command()
@click.argument("recording", required=False, type=PATH, metavar="[RECORDING]")
@click.option(
    "--speed",
    type=float,
    default=4.0,
    show_default=True,
    help="Speed of the replay, as a multiple of the original speed.",
)
@click.option(
    "--port", type=click.IntRange(0, 65535), default=8501, show_default=True, help="Port of the dashboard."
)
@click.option(
    "--live", is_flag=True, help="Train instead of replaying a recording; requires torch and deepspeed."
)
@click.option(
    "--exit-when-done", is_flag=True, help="Exit after the diagnosis instead of waiting for Control+C."
)
def demo(recording: Path | None, speed: float, port: int, live: bool, exit_when_done: bool) -> None:
    """Replay a recorded real stall and show how Stallwatch detects it.

    The stall appears in the terminal, on the dashboard, and at a local chat endpoint. RECORDING is a run's
    folder that `stallwatch run` wrote (default: the packaged recording).
    """
    from stallwatch.demo import demo as show

    raise click.exceptions.Exit(
        show(recording, speed=speed, port=port, live=live, exit_when_done=exit_when_done)
    )
