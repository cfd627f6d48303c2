"""Inject faults into the environment of a training run at random moments and check Stallwatch's guarantees.

    make faults
    python bench/faults.py --trials 1000 --resume faults.jsonl

Each trial runs a small training program under the real ``stallwatch``, with a chat on this machine, and
injects a fault. The trial checks that the output and the exit code of the training are the same as without
Stallwatch. It also checks that each incident arrives once or twice, that the opening message arrives before
the closing message, and that Stallwatch reports every loss. The exit code 1 means that a guarantee was
broken.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict
from pathlib import Path

from fault_kinds import FAULTS, close_servers, left_out
from fault_trials import Result, Trial
from scoring import Share


def schedule(trials: int, only: Sequence[str]) -> list[tuple[int, str, int]]:
    """For each trial, return its number, its fault, and the number of earlier trials with this fault.

    The trials of each fault are spread evenly.
    """
    lacking = left_out()
    names = [name for name in FAULTS if name not in lacking]
    names = [name for name in names if not only or any(word in name for word in only)]
    if not names:
        raise SystemExit(f"no fault is called {', '.join(only)}; the faults are {', '.join(FAULTS)}")
    shares = [((turn + 0.5) / FAULTS[name][1], name) for name in names for turn in range(FAULTS[name][1])]
    cycle = [name for _, name in sorted(shares, key=lambda share: share[0])]
    seen = dict.fromkeys(names, 0)
    found = []
    for number, name in zip(range(trials), itertools.cycle(cycle), strict=False):
        found.append((number, name, seen[name]))
        seen[name] += 1
    return found


def one_trial(number: int, seed: int, fault: str, index: int) -> Result:
    """Run one trial."""
    return Trial(number, seed, fault, index).run(FAULTS[fault][0])


def run(
    planned: Sequence[tuple[int, str, int]], seed: int, jobs: int, minutes: float | None
) -> Iterator[Result]:
    """Run the trials and yield their results. Do not start a trial after `minutes` minutes."""
    end = time.monotonic() + minutes * 60 if minutes else math.inf
    ended = threading.Event()

    def guarded(number: int, fault: str, index: int) -> Result | None:
        if ended.is_set() or time.monotonic() > end:
            return None
        return one_trial(number, seed, fault, index)

    with ThreadPoolExecutor(jobs) as pool:
        futures = [pool.submit(guarded, *item) for item in planned]
        try:
            for future in as_completed(futures):
                if (result := future.result()) is not None:
                    yield result
        except BaseException:
            ended.set()
            raise


def table(results: Sequence[Result]) -> str:
    """Return a table with a row for each fault and a row for all faults."""
    rows = [
        "| fault | trials | trials with the same training output | trials with the same exit code"
        " | incidents expected | once | twice | missing | trials with the right order"
        " | losses without a report |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    names = [name for name in FAULTS if any(result.fault == name for result in results)]
    for name in [*names, "all"]:
        of = [result for result in results if name in (result.fault, "all")]
        untouched, kept = sum(item.untouched for item in of), sum(item.exit_kept for item in of)
        ordered = sum(item.in_order for item in of)
        low, _ = Share(untouched, len(of)).interval
        rows.append(
            f"| {name} | {len(of)} | {untouched} (≥ {low:.1%}) | {kept} | {sum(item.expected for item in of)}"
            f" | {sum(item.once for item in of)} | {sum(item.twice for item in of)}"
            f" | {sum(item.missing for item in of)} | {ordered} | {sum(item.silent for item in of)} |"
        )
    return "\n".join(rows)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the remaining trials and print a summary of all trials."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=3, help="number of parallel trials")
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="FAULT",
        help="run only faults whose names contain this text",
    )
    parser.add_argument("--trial", type=int, metavar="K", help="run only trial K of the selected faults")
    parser.add_argument("--once", action="store_true", help="run only the first trial of each fault")
    parser.add_argument("--minutes", type=float, help="start no trial after this many minutes")
    parser.add_argument(
        "--resume",
        type=Path,
        metavar="FILE.jsonl",
        help="continue from the results in this file, and append to it",
    )
    given = parser.parse_args(arguments)
    planned = schedule(given.trials if given.trial is None else given.trial + 1, given.only)
    if given.trial is not None:
        planned = planned[-1:]
    if given.once:
        planned = [item for item in planned if item[2] == 0]
    results: list[Result] = []
    if given.resume and given.resume.exists():
        results = [Result(**json.loads(line)) for line in given.resume.read_text().splitlines()]
    done = {(item.trial, item.seed, item.fault) for item in results}
    left = [item for item in planned if (item[0], given.seed, item[1]) not in done]
    try:
        for result in run(left, given.seed, given.jobs, given.minutes):
            results.append(result)
            if given.resume:
                with given.resume.open("a") as out:
                    out.write(json.dumps(asdict(result)) + "\n")
            if result.broken:
                print(_broken(result, given.only), flush=True)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
    finally:
        close_servers()
    print(table(results))
    for name, lacks in left_out().items():
        print(f"skipped: {name} needs {lacks}")
    bad = [item for item in results if item.broken]
    low, _ = Share(len(results) - len(bad), len(results)).interval
    print(
        f"\n{len(results) - len(bad)} of {len(results)} trials met every guarantee "
        f"(≥ {low:.1%} with 95% confidence)"
    )
    return 1 if bad else 0


def _broken(result: Result, only: Sequence[str]) -> str:
    again = f"--seed {result.seed} --trial {result.trial}" + "".join(f" --only {word!r}" for word in only)
    lines = [f"trial {result.trial}: {result.fault} ({result.detail}), {result.scenario}: {again}"]
    return "\n".join([*lines, *(f"    {item}" for item in result.broken)])


if __name__ == "__main__":
    sys.exit(main())
