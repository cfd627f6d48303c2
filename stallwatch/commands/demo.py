"""``stallwatch demo``: a stall from its first healthy step to its diagnosis."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.argument("recording", required=False, type=click.Path(path_type=Path), metavar="[RECORDING]")
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
