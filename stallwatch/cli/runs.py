"""``stallwatch runs``, ``replay`` and ``demo``: what ran here, and recorded runs printed again."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from stallwatch.cli.context import PATH, App, local_time, one_line, plain_table, show_table, tell

if TYPE_CHECKING:
    from stallwatch_exporter.runs.runfolder import AgentInfo


_COLUMNS = ("run", "state", "started", "lasted", "ended", "metrics")


@click.command()
@click.pass_obj
def runs(app: App) -> None:
    """List the runs of this machine.

    Newest first: state, start, duration, how it ended, where its metrics are. On a terminal it is a
    table; elsewhere the columns are separated by tabs.
    """
    from stallwatch_exporter.runs.runfolder import kept_runs

    config = app.config()
    home = config["run.home"]
    rows = [_row(_with_end(info, folder)) for folder, info in kept_runs(home)]
    if any(problem.key == "run.home" for problem in config.problems):
        pass  # told already: nothing can have run there
    elif not rows:
        tell(f"no run in {home} yet; start one: stallwatch run -- COMMAND")
    elif sys.stdout.isatty():
        table = plain_table(*_COLUMNS)
        for row in rows:
            table.add_row(*row)
        show_table(table)
    else:
        for row in rows:
            click.echo("\t".join(map(one_line, row)))
    raise click.exceptions.Exit(2 if config.problems else 0)


def _with_end(info: AgentInfo, folder: Path) -> AgentInfo:
    """With the end that an incident tells of, where a full disk kept the run's own record from telling it."""
    from stallwatch_exporter.postmortem.recorded import recorded_end
    from stallwatch_exporter.runs.runfolder import agent_alive
    from stallwatch_exporter.watching.incidents import read_incidents

    if info.ended_at is not None or agent_alive(info):
        return info
    end = recorded_end(read_incidents(folder), info.started_at)
    if end is None:
        return info
    return msgspec.structs.replace(info, ended_at=end.updated_at, ending=end.ending, state="failed")


def _row(info: AgentInfo) -> tuple[str, ...]:
    from stallwatch_exporter.runs.runfolder import agent_alive
    from stallwatch_rules.locale import span
    from stallwatch_rules.text.redact import redact

    alive = agent_alive(info)
    if alive or info.ended_at is not None:
        state, ending = _state(info), _ending(info)
    else:
        state, ending = "agent gone", f"not heard of since {local_time(info.updated_at)}"
    lasted = max(0.0, (info.ended_at or (time.time() if alive else info.updated_at)) - info.started_at)
    metrics = (info.endpoint or "-") if alive else "-"
    if info.partial or info.gaps:
        ending += ", partial record"
    return redact(info.run), state, local_time(info.started_at), span(lasted), ending, metrics


def _state(info: AgentInfo) -> str:
    """Whoever pressed Ctrl-C did not see the run fail, and who stopped watching did not see it end."""
    kind = info.ending.kind if info.ending is not None else ""
    return {"interrupted": "interrupted", "unknown": "not watched"}.get(kind, info.state)


def _ending(info: AgentInfo) -> str:
    ending = info.ending
    if ending is None:
        return "-"
    details = [ending.signal or "", f"exit code {ending.exit_code}" if ending.exit_code else ""]
    told = ", ".join(detail for detail in details if detail)
    return f"{ending.kind} ({told})" if told else ending.kind


@click.command()
@click.argument("folder", type=PATH)
@click.option("--speed", type=float, default=1.0, show_default=True, help="How much faster than it was.")
@click.option("--max-gap", type=float, metavar="SECONDS", help="Shorten silences to this.")
def replay(folder: Path, speed: float, max_gap: float | None) -> None:
    """Print a recorded run again.

    The same bytes, at their own pace, with the exit code it had. FOLDER is the folder of a run that
    `stallwatch run` kept.

    \b
    stallwatch run -- stallwatch replay ~/.local/state/stallwatch/runs/myrun --speed 10
    """
    from stallwatch_exporter.runs.replay import NoRecording
    from stallwatch_exporter.runs.replay import replay as print_again

    try:
        code = print_again(folder, speed, max_gap=max_gap)
    except (NoRecording, ValueError, OSError) as error:
        if isinstance(error, OSError) and error.filename is None:
            raise  # no file of the run's: standard output, which the command's entry tells of
        raise click.UsageError(
            f"{error}; name a run's folder, such as one under runs/ in the state folder"
        ) from error
    raise click.exceptions.Exit(code)


@click.command()
@click.argument("recording", required=False, type=PATH, metavar="[RECORDING]")
@click.option("--speed", type=float, default=4.0, show_default=True, help="How much faster than it was.")
@click.option("--port", type=click.IntRange(0, 65535), default=8501, show_default=True, help="Of the page.")
@click.option("--live", is_flag=True, help="Train instead of replaying; needs torch and deepspeed.")
@click.option("--exit-when-done", is_flag=True, help="End after the diagnosis instead of waiting for Ctrl-C.")
def demo(recording: Path | None, speed: float, port: int, live: bool, exit_when_done: bool) -> None:
    """Show a recorded real stall being found.

    In the terminal, on the dashboard and at a local chat endpoint. RECORDING is the folder of a run
    that `stallwatch run` kept; by default the one that comes along.
    """
    from stallwatch.demo import demo as show

    raise click.exceptions.Exit(
        show(recording, speed=speed, port=port, live=live, exit_when_done=exit_when_done)
    )
