"""``stallwatch samples``: the numbers in a run's logs as a table."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from stallwatch.commands.context import tell, tell_all
from stallwatch.commands.progressbar import progress_bar

_NOTHING = 1
_NOT_ALL = 2


@click.command()
@click.argument("paths", nargs=-1, required=True, metavar="PATH…")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write this file: .csv or .parquet. Default: CSV on standard output.",
)
def samples(paths: tuple[str, ...], output: Path | None) -> None:
    """Make a table of the numbers in logs: losses, norms, rates, memory, by rank and step.

    PATH is a file, a folder of per-rank logs, a glob, an archive (.gz .xz .zst .zip .tar.*), or - for
    standard input.

    \b
    stallwatch samples train.log > samples.csv
    stallwatch samples logs/ -o samples.parquet

    Exit code: 2 when something could not be read (the rest is still written), or FILE cannot be written; 1
    when there were no samples; else 0.
    """
    from stallwatch_exporter.sampling.files import MissingLibrary, replacing, write_csv, write_parquet
    from stallwatch_exporter.sampling.rows import Sampling
    from stallwatch_rules.text.digest import counted

    parquet = output is not None and output.suffix.lower() == ".parquet"
    if output is not None and not parquet and output.suffix.lower() != ".csv":
        raise click.UsageError(f"{output}: the name must end in .csv or .parquet")
    with progress_bar() as progress:
        sampling = Sampling(list(paths), progress=progress)
        try:
            if output is None:
                count = write_csv(sampling, sys.stdout.buffer)
            else:
                with replacing(output) as out:
                    count = write_parquet(sampling, out) if parquet else write_csv(sampling, out)
        except MissingLibrary as error:
            raise click.ClickException(str(error)) from None
        except OSError as error:
            if output is None:
                raise  # the entry of all commands tells of standard output
            tell(f"{output}: cannot be written: {error.strerror or error}; name another file with -o")
            raise click.exceptions.Exit(_NOT_ALL) from None
    tell_all(sampling.problems)
    if not count and not sampling.problems:
        tell("no samples were found; stallwatch diagnose says what the log tells")
    elif output is not None and count:
        tell(f"{counted(count, 'sample')} in {output}")
    raise click.exceptions.Exit(_NOT_ALL if sampling.problems else 0 if count else _NOTHING)
