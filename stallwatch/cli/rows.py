"""Implement ``stallwatch matches`` and ``stallwatch samples``: extract rows from logs."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from stallwatch.cli.context import (
    FILE,
    App,
    any_unread,
    catalogue_of,
    paths_argument,
    print_notice,
    print_notices,
    progress_bar,
    rules_option,
)
from stallwatch.config.handover import read_limits

if TYPE_CHECKING:
    from stallwatch_rules.pages.catalogue import Catalogue
    from stallwatch_rules.scan.matches import Match

_NOTHING = 1
_NOT_ALL = 2


@click.command()
@paths_argument
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line, with the captures.")
@click.option(
    "--rule",
    "only",
    multiple=True,
    metavar="ID",
    help="Search only for matches of this rule; can be repeated.",
)
@click.option(
    "--every",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    help="Count each rule's matches in intervals of this many seconds, instead of listing them.",
)
@rules_option
@click.pass_obj
def matches(
    app: App,
    paths: tuple[str, ...],
    as_json: bool,
    only: tuple[str, ...],
    every: float | None,
) -> None:
    """Show every line in logs that a rule matches, as grep does for a pattern.

    PATH is a file, a folder of per-rank logs, a glob, an archive (.gz .xz .zst .zip .tar.*), or - for
    standard input. To see the impact of the matches on the run, use stallwatch diagnose.

    \b
    stallwatch matches logs/
    stallwatch matches logs/ --rule nccl-collective-timeout --json
    stallwatch matches slurm-1234.out --every 60

    Exit code: 2 if an input could not be read (all other inputs are still searched); 1 if no rule matches;
    otherwise 0.
    """
    from stallwatch_logs.file_reading import Matching
    from stallwatch_rules.matching.matcher import Matcher

    config = app.config()
    catalogue = _chosen(catalogue_of(config), only)
    with progress_bar() as progress:
        limits = read_limits(config)
        matching = Matching(list(paths), Matcher(catalogue), progress=progress, limits=limits)
        found = matching.matches()
        count = 0
        for text in _counts(found, every, as_json) if every is not None else _places(found, as_json):
            click.echo(text)
            count += 1
    print_notices(matching.problems)
    if any_unread(matching.problems) or config.problems or catalogue.problems:
        raise click.exceptions.Exit(_NOT_ALL)
    raise click.exceptions.Exit(0 if count else _NOTHING)


def _chosen(catalogue: Catalogue, only: tuple[str, ...]) -> Catalogue:
    """Return a catalogue with only the rules that the user named. If there are none, return all rules."""
    from stallwatch_rules.pages.catalogue import Catalogue

    unknown = [rule for rule in only if rule not in catalogue.pages]
    if unknown:
        raise click.UsageError(
            f"--rule {unknown[0]}: no such rule; to list all rules, run stallwatch rules list"
        )
    if not only:
        return catalogue
    return Catalogue.of([catalogue.pages[rule] for rule in dict.fromkeys(only)], store=catalogue.store)


def _places(found: Iterable[Match], as_json: bool) -> Iterator[str]:
    import msgspec

    from stallwatch_rules.text.controls import without_controls
    from stallwatch_rules.text.display import iso, shown

    for rule, line, captures in found:
        text = without_controls(shown(line.text))
        if as_json:
            clean = {name: without_controls(value) for name, value in captures.items()}
            place = {"rule": rule, "file": line.source, "line": line.number, "rank": line.rank}
            yield msgspec.json.encode(
                {**place, "time": iso(line.time), "captures": clean, "text": text}
            ).decode()
        else:
            yield f"{line.source}:{line.number}: {rule}: {text}"


def _counts(found: Iterable[Match], every: float, as_json: bool) -> Iterator[str]:
    """Yield a line of output for each interval and rule, in time order. Matches without a time come last."""
    import msgspec

    from stallwatch_rules.text.display import iso

    counted = Counter((match.bucket(every), match.rule) for match in found)
    for (start, rule), count in sorted(
        counted.items(), key=lambda item: (item[0][0] is None, item[0][0] or 0, item[0][1])
    ):
        if as_json:
            yield msgspec.json.encode({"time": iso(start), "rule": rule, "count": count}).decode()
        else:
            yield f"{iso(start) or '-':24} {count:7d} {rule}"


@click.command()
@paths_argument
@click.option(
    "-o",
    "--output",
    type=FILE,
    metavar="FILE",
    help="Write the table to this .csv or .parquet file (default: CSV on standard output).",
)
@click.pass_obj
def samples(app: App, paths: tuple[str, ...], output: Path | None) -> None:
    """Create a table of the metrics in logs (losses, norms, rates, and memory sizes) by rank and step.

    PATH is a file, a folder of per-rank logs, a glob, an archive (.gz .xz .zst .zip .tar.*), or - for
    standard input.

    \b
    stallwatch samples train.log > samples.csv
    stallwatch samples logs/ -o samples.parquet

    Exit code: 2 if an input could not be read (samples of all other inputs are still written) or FILE could
    not be written; 1 if the logs contain no samples; otherwise 0.
    """
    from stallwatch_exporter.sampling.files import MissingLibrary, write_csv, write_parquet
    from stallwatch_exporter.sampling.rows import Sampling
    from stallwatch_rules.files import replacing
    from stallwatch_rules.text.digest import counted

    parquet = output is not None and output.suffix.lower() == ".parquet"
    if output is not None and not parquet and output.suffix.lower() != ".csv":
        raise click.UsageError(f"{output}: the name must end in .csv or .parquet")
    with progress_bar() as progress:
        sampling = Sampling(list(paths), progress=progress, limits=read_limits(app.config()))
        try:
            if not sampling.files:
                count = 0  # an earlier FILE is kept
            elif output is None:
                count = write_csv(sampling, sys.stdout.buffer)
            else:
                with replacing(output, mode=None) as out:
                    count = write_parquet(sampling, out) if parquet else write_csv(sampling, out)
        except MissingLibrary as error:
            raise click.ClickException(str(error)) from None
        except OSError as error:
            if output is None:
                raise  # the entry point of all commands reports failed writes to standard output
            reason = error.strerror or error
            print_notice(f"{output}: cannot be written: {reason}; choose another file with -o")
            raise click.exceptions.Exit(_NOT_ALL) from None
    print_notices(sampling.problems)
    if not count and not any_unread(sampling.problems):
        print_notice("no samples were found; to see what the log contains, run stallwatch diagnose")
    elif output is not None and count:
        print_notice(f"{counted(count, 'sample')} written to {output}")
    raise click.exceptions.Exit(_NOT_ALL if any_unread(sampling.problems) else 0 if count else _NOTHING)
