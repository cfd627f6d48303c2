"""Run programs that train or fail under the real ``stallwatch run`` and ``stallwatch tail``.

    make bench-live
    python bench/live.py --only 'ddp-*' --seeds 1 --jobs 2
    python bench/live.py --resume results.jsonl

The programs run in real time on the CPU, with a webhook on this machine as the chat. The result of a healthy
program is *false* if the program causes a warning or a critical message, or if its final state is not
finished. The result of a failing program is *right* if the first message after its event is timely and names
the rank, the location, and the class of the cause. After an unexpected result, the program is rerun alone on
the machine, and only this repetition counts.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import psutil
from live_programs.table import PROGRAMS, Program
from live_runs import Run, missing, quiet
from live_scoring import score
from live_tables import tables
from rich.console import Console
from rich.markup import escape

BESIDE = str(Path(sys.executable).with_name("stallwatch"))
APART = 5.0  #: seconds between the starts of two programs
_NEVER_AGAIN = "skipped"


@dataclass(frozen=True)
class Task:
    """A run of one program with one seed."""

    program: Program
    seed: int

    @property
    def key(self) -> tuple[str, int]:
        return self.program.name, self.seed


def tasks(programs: Iterable[Program], seeds: int) -> list[Task]:
    """Return the tasks: one for each seed of a healthy program, and one for each failing program.

    The tasks are sorted by seed. Within a seed, long tasks come first.
    """
    listed = [
        Task(program, seed)
        for program in programs
        for seed in range(1, (seeds if program.healthy else 1) + 1)
    ]
    mixed = random.Random(0).sample(listed, len(listed))
    return sorted(mixed, key=lambda task: (task.seed, -(task.program.seconds // 300)))


class Bench:
    """Runs several tasks at a time and stores one line of JSON for each task."""

    def __init__(self, results: Path, options: argparse.Namespace) -> None:
        self._results, self._stallwatch, self._jobs = results, options.baseline, options.jobs
        self._until, self._keep = time.monotonic() + 60 * options.minutes, options.keep
        self._load, self._once = options.load, options.once
        self._console = Console(stderr=True, highlight=False)
        self._starting, self._writing = threading.Lock(), threading.Lock()
        self.rows: list[dict[str, Any]] = []
        if results.exists():
            self.rows = [json.loads(line) for line in results.read_text().splitlines()]

    def done(self) -> set[tuple[str, int]]:
        return {(row["name"], row["seed"]) for row in self.rows}

    def run(self, wanted: list[Task]) -> None:
        """Run all tasks that have no result. Then repeat the tasks with unexpected results one at a time."""
        left = [task for task in wanted if task.key not in self.done()]
        self._console.print(
            f"{len(left)} runs are left; {len(wanted) - len(left)} runs already have a result"
        )
        with ThreadPoolExecutor(self._jobs) as pool:
            try:
                list(pool.map(lambda task: self._run_task(task, alone=False), left))
            except KeyboardInterrupt:
                self._until = 0.0
                self._console.print("No more programs are started; waiting for the running programs …")
        if self._once or not self._until:
            return
        again = {(row["name"], row["seed"]) for row in self.rows if row["alone"]}
        surprises = {
            (row["name"], row["seed"]) for row in self.rows if row["outcome"] not in ("right", _NEVER_AGAIN)
        }
        for task in wanted:
            if task.key in surprises - again:
                self._run_task(task, alone=True)

    def _run_task(self, task: Task, *, alone: bool) -> None:
        program = task.program
        lacking = missing(program)
        if lacking:
            self._record(task, alone, {"outcome": _NEVER_AGAIN, "why": f"needs {', '.join(lacking)}"})
            return
        with self._starting:
            load = quiet(os.cpu_count() or 1, self._load, lambda: time.monotonic() > self._until)
            if time.monotonic() > self._until:
                return
            run = Run(program, task.seed, self._stallwatch)
            self._console.print(
                f"[dim]{time.strftime('%H:%M:%S')} {program.name} seed {task.seed}: started[/dim]"
            )
            time.sleep(0 if alone else APART)
        try:
            seen = run.observe()
        except (OSError, ValueError, psutil.Error) as problem:
            # Other tasks can still run after an error such as a full disk.
            self._record(task, alone, {"outcome": "invalid", "why": f"{type(problem).__name__}: {problem}"})
            return
        judged = score(program, seen)
        row = {
            **asdict(judged),
            "event": seen.event,
            "ran": round(time.time() - seen.started, 1),
            "verdict": seen.verdict,
            "state": seen.state,
            "threshold": seen.threshold,
            "load": round(load, 2),
            "messages": [{"at": message.at, **_kept(message.body)} for message in seen.messages],
        }
        if self._keep and judged.outcome != "right":
            row["folder"] = str(run.folder)
        else:
            run.discard()
        self._record(task, alone, row)

    def _record(self, task: Task, alone: bool, row: dict[str, Any]) -> None:
        program = task.program
        about = {
            "name": program.name,
            "seed": task.seed,
            "family": program.family,
            "healthy": program.healthy,
            "frozen": program.frozen,
            "alone": alone,
            "stallwatch": self._stallwatch,
        }
        with self._writing:
            self.rows.append({**about, **row})
            with self._results.open("a") as file:
                file.write(json.dumps(self.rows[-1]) + "\n")
        colour = {"right": "green", _NEVER_AGAIN: "dim"}.get(row["outcome"], "red")
        seconds = f" after {row['seconds']:.0f} s" if row.get("seconds") is not None else ""
        kept = f" ({row['folder']})" if "folder" in row else ""
        where = " (alone)" if alone else ""
        self._console.print(
            f"{time.strftime('%H:%M:%S')} {program.name} seed {task.seed}{where}:"
            f" [{colour}]{row['outcome']}[/{colour}]{seconds} {escape(row['why'] + kept)}",
            soft_wrap=True,
        )


def _kept(body: dict[str, Any]) -> dict[str, Any]:
    names = ("title", "rule", "severity", "status", "outcome", "rank", "odd_ranks", "id")
    return {name: body[name] for name in names if name in body} | {"text": str(body.get("text", ""))[:2000]}


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__.partition("\n\n")[0], formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only", nargs="+", default=["*"], metavar="GLOB", help="names of programs or families"
    )
    parser.add_argument(
        "--kind",
        choices=("healthy", "failing", "frozen", "development"),
        help="run only programs of this kind",
    )
    parser.add_argument("--seeds", type=int, default=3, help="runs of each healthy program (default: 3)")
    parser.add_argument("--jobs", type=int, default=4, help="number of parallel programs (default: 4)")
    parser.add_argument("--resume", type=Path, metavar="FILE", help="continue from the results in this file")
    parser.add_argument(
        "--minutes", type=float, default=float("inf"), help="start no program after this many minutes"
    )
    parser.add_argument(
        "--load", type=float, default=1.5, help="start no program above this load per core (default: 1.5)"
    )
    parser.add_argument(
        "--baseline", default=BESIDE, metavar="STALLWATCH", help="path of the stallwatch to run"
    )
    parser.add_argument("--once", action="store_true", help="do not repeat runs with unexpected results")
    parser.add_argument(
        "--keep", action="store_true", help="keep the folder of each run whose result is not right"
    )
    parser.add_argument("--list", action="store_true", help="list the programs and exit")
    parser.add_argument("--table", action="store_true", help="print the table of --resume FILE and exit")
    return parser.parse_args()


def _chosen(options: argparse.Namespace) -> list[Program]:
    kinds = {
        "healthy": (True, None),
        "failing": (False, None),
        "frozen": (None, True),
        "development": (None, False),
    }
    healthy, frozen = kinds.get(options.kind, (None, None))
    return [
        program
        for program in PROGRAMS
        if any(
            fnmatch.fnmatch(name, glob) for name in (program.name, program.family) for glob in options.only
        )
        and healthy in (None, program.healthy)
        and frozen in (None, program.frozen)
    ]


def main() -> None:
    options = _options()
    chosen = _chosen(options)
    if options.list:
        for program in chosen:
            kind = "healthy" if program.healthy else "failing"
            print(f"{program.name:56} {kind} {'frozen' if program.frozen else '':6} {program.seconds:4.0f} s")
        healthy = sum(program.healthy for program in chosen)
        print(
            f"{len(chosen)} programs, {healthy} healthy, {sum(program.frozen for program in chosen)} frozen"
        )
        return
    results = options.resume or Path(f"bench-live-{time.strftime('%Y%m%d-%H%M%S')}.jsonl")
    # A shell's background job ignores Control+C, and its child processes would inherit this behavior.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    bench = Bench(results, options)
    if not options.table:
        bench.run(tasks(chosen, options.seeds))
    print(tables(bench.rows))
    print(f"\nResults: {results}")


if __name__ == "__main__":
    main()
