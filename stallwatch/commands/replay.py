"""``stallwatch replay``: a recorded run, printed again at its own pace."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
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
