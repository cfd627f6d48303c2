"""Fuzz every parser of external data and report the inputs that a parser cannot handle.

    python bench/fuzz.py [--inputs 10000000] [--seed 1] [--jobs 2] [--only GLOB …] [--minutes M]

Each parser (``fuzzing/targets.py``) receives real samples that are spliced and damaged
(``fuzzing/mutation.py``). Fast parsers receive more inputs. An input fails if the parser raises an exception
that its documentation does not name, stops responding, or needs unlimited memory. An input also fails if,
three times in a row, the parser takes more than ten times its median time per byte and more than 10 ms. The
file that ``--failures`` names contains a line for each failure, with the numbers that reproduce it:

    python bench/fuzz.py --again TARGET:SEED:NUMBER

``--state FILE`` stores the progress in a file, so that a later run can continue. ``--growth`` repeats samples
and tokens instead, and looks for parsers whose running time grows faster than the input size. ``--patterns``
does the same with every regular expression of Stallwatch. If ``--engine atheris`` is set, libFuzzer follows
the code coverage of one parser (``pip install atheris``).
"""

from __future__ import annotations

import fnmatch
import json
import math
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from fuzzing.running import Failure, Result, as_line, make, run
from fuzzing.targets import BY_NAME, TARGETS, Target, seconds_for, wrong

_PART = 3.0  # seconds for a part of a target's inputs; the targets take turns with their parts


def shares(targets: Sequence[Target], inputs: int) -> dict[str, int]:
    """Return the number of inputs for each target, which is at least one and is larger for fast targets."""
    weights = {target.name: 1 / (30 + target.cost) for target in targets}
    every = sum(weights.values())
    return {name: max(1, round(inputs * weight / every)) for name, weight in weights.items()}


@click.command(help=__doc__)
@click.option(
    "--inputs",
    type=int,
    default=10_000_000,
    show_default=True,
    help="Number of inputs for all parsers together.",
)
@click.option("--minutes", type=float, help="Stop after this many minutes.")
@click.option("--seed", type=int, default=1, show_default=True)
@click.option("--jobs", type=int, default=1, show_default=True, help="Number of parallel processes.")
@click.option("--only", multiple=True, metavar="GLOB", help="Fuzz only parsers whose names match.")
@click.option(
    "--state",
    type=click.Path(path_type=Path),
    help="File that stores the progress. A later call with this file continues the fuzzing.",
)
@click.option(
    "--failures", type=click.Path(path_type=Path), default=Path("fuzz-failures.jsonl"), show_default=True
)
@click.option("--again", metavar="TARGET:SEED:NUMBER", help="Generate one input again, and show its result.")
@click.option("--growth", is_flag=True, help="Repeat parts of inputs, and compare times.")
@click.option("--patterns", is_flag=True, help="Attack the regular expressions of Stallwatch.")
@click.option("--engine", type=click.Choice(["own", "atheris"]), default="own", show_default=True)
@click.option("--list", "listed", is_flag=True, help="List the parsers.")
def main(
    inputs: int,
    minutes: float | None,
    seed: int,
    jobs: int,
    only: tuple[str, ...],
    state: Path | None,
    failures: Path,
    again: str | None,
    growth: bool,
    patterns: bool,
    engine: str,
    listed: bool,
) -> None:
    targets = [item for item in TARGETS if not only or any(fnmatch.fnmatch(item.name, glob) for glob in only)]
    if listed:
        for target in targets:
            click.echo(
                f"{target.name:20} {target.cost:6} µs  {', '.join(e.__name__ for e in target.raises) or '-'}"
            )
    elif again is not None:
        _again(again)
    elif growth or patterns:
        from fuzzing import growth as stretching
        from fuzzing import patterns as attacks

        found = stretching.search(targets, click.echo) if growth else attacks.search(click.echo)
        sys.exit(1 if found else 0)
    elif engine == "atheris":
        from fuzzing.guided import follow

        follow(targets, inputs, seed)
    else:
        results = fuzz(targets, inputs, seed, jobs, minutes, state, failures)
        show(results)
        sys.exit(1 if any(result.failures for result in results.values()) else 0)


def fuzz(
    targets: Sequence[Target],
    inputs: int,
    seed: int,
    jobs: int = 1,
    minutes: float | None = None,
    state: Path | None = None,
    failures: Path | None = None,
) -> dict[str, Result]:
    """Run `inputs` inputs in total, spread over the targets. Write each failure immediately."""
    end = time.monotonic() + 60 * minutes if minutes is not None else math.inf
    wanted, results = shares(targets, inputs), _kept(state, seed)
    parts: list[tuple[float, Target, int, int]] = []
    for target in targets:
        target.samples()  # create the samples before the worker processes start
        results.setdefault(target.name, Result(target.name))
        first, last = results[target.name].inputs, wanted[target.name]
        step = max(100, int(_PART * 1e6 / (60 + target.cost)))
        parts += [
            ((begin - first) / max(1, last - first), target, begin, min(last, begin + step))
            for begin in range(first, last, step)
        ]
    parts.sort(key=lambda part: (part[0], part[1].name))  # all parsers progress evenly

    def run_part(part: tuple[float, Target, int, int]) -> Result | None:
        _, target, first, last = part
        return run(target, seed, first, last, end=end) if time.monotonic() < end else None

    with ThreadPoolExecutor(jobs) as pool:
        for done in as_completed([pool.submit(run_part, part) for part in parts]):
            part = done.result()
            if part is None:
                continue
            results[part.target].add(part)
            for failure in part.failures:
                click.echo(
                    f"{failure.target}:{failure.seed}:{failure.number} {failure.kind}: {failure.what}",
                    err=True,
                )
                if failures is not None:
                    with failures.open("a") as out:
                        out.write(as_line(failure) + "\n")
            if state is not None:
                _keep(state, seed, results)
    return {name: item for name, item in results.items() if name in wanted}


def _kept(state: Path | None, seed: int) -> dict[str, Result]:
    """Return the stored results of earlier runs. Raise `ClickException` if their seed was different."""
    if state is None or not state.exists():
        return {}
    before: dict[str, Any] = json.loads(state.read_text())
    if before["seed"] != seed:
        raise click.ClickException(
            f"{state} contains results of seed {before['seed']}; use this seed, or give another file"
        )
    results = {name: Result(**item) for name, item in before["results"].items()}
    for result in results.values():
        result.failures = [Failure(**failure) for failure in result.failures]  # type: ignore[arg-type]
    return results


def _keep(state: Path, seed: int, results: dict[str, Result]) -> None:
    fresh = state.with_suffix(".new")
    fresh.write_text(
        json.dumps({"seed": seed, "results": {name: asdict(item) for name, item in results.items()}})
    )
    fresh.replace(state)


def show(results: dict[str, Result]) -> None:
    """Print the table of results."""
    click.echo("| parser | inputs | inputs/s | failures | slowest (multiple of the median) | peak, MiB |")
    click.echo("|---|--:|--:|--:|--:|--:|")
    for result in results.values():
        rate = result.inputs / result.seconds if result.seconds else 0
        slowest = f"{result.slowest:.1f}" if result.slowest else "-"
        cells = (
            result.target,
            f"{result.inputs:,}",
            f"{rate:,.0f}",
            len(result.failures),
            slowest,
            result.peak >> 20,
        )
        click.echo(f"| {' | '.join(map(str, cells))} |")
    every = list(results.values())
    seconds = sum(item.seconds for item in every) or 1
    inputs, failed = sum(item.inputs for item in every), sum(len(item.failures) for item in every)
    peak = max(item.peak for item in every) >> 20
    click.echo(f"| all {len(every)} | {inputs:,} | {inputs / seconds:,.0f} | {failed} | | {peak} |")


def _again(what: str) -> None:
    name, seed, number = what.rsplit(":", 2)
    data = make(BY_NAME[name], int(seed), int(number))
    click.echo(repr(data[:2000]))
    target = BY_NAME[name]
    seconds = min(seconds_for(target, data) for _ in range(3))
    reason = wrong(target, data) or "no problem"
    click.echo(f"{len(data)} bytes (size {target.size(data)}), {seconds:.6f} s: {reason}")
    target.parse(data)


if __name__ == "__main__":
    main()
