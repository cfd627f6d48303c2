"""Run every failure on every stack and write docs/versions.md: `make test-versions`.

    python -m versions --folder DIR [--stack 0.15.3 …] [--again]     # in tests/repro

Results that exist are not measured again without ``--again``. A stack that cannot be installed is reported
and left out. The exit code is 1 if a result differs from the expectation (expected.py) or an attempt could
not run.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from scrub import scrubber
from watched import HERE, NotWatched, Seen, torchrun, watch

from . import results
from .attempts import ATTEMPTS, Attempt
from .environments import environment_of
from .expected import differences
from .page import PAGE, page
from .stacks import STACKS, Stack

REPOSITORY = HERE.parents[1]


def main() -> int:
    options = _options()
    options.folder.mkdir(parents=True, exist_ok=True)
    kept = options.folder / "observed.json"
    seen = {} if options.again and not options.stack else results.read(kept)
    chosen = [stack for stack in STACKS if not options.stack or stack.deepspeed in options.stack]
    for stack in chosen:
        _try_all(stack, seen, kept, options)
    everything = results.read() | seen  # attempts that were not run keep their last result
    results.write(everything)
    (REPOSITORY / PAGE).write_text(page(everything))
    problems = [problem for stack in chosen for problem in _problems(stack, seen)]
    print(f"\n{len(seen)} results, written to {PAGE}")
    print("\n  ".join(["Not as expected:", *problems]) if problems else "All as expected.")
    return 1 if problems else 0


def _try_all(stack: Stack, seen: results.Results, kept: Path, options: argparse.Namespace) -> None:
    """Create the stack's environment and run its remaining attempts."""
    attempts = [each for each in ATTEMPTS if each.fits(stack)]
    open_ones = [each for each in attempts if options.again or (stack.name, each.name) not in seen]
    print(f"\n{stack.name}: {len(open_ones)} of {len(attempts)} attempts to make", flush=True)
    if not open_ones:
        return
    try:
        python = environment_of(stack, options.folder, options.torch)
    except subprocess.CalledProcessError as error:
        print(f"  cannot be installed, goes on without it:\n{error.stderr}", flush=True)
        return
    for attempt in open_ones:
        print(f"  {attempt.name:22}", end="", flush=True)
        try:
            one = seen[stack.name, attempt.name] = _try(stack, attempt, python, options.folder)
        except NotWatched as error:
            print(f" not watched, goes on without it:\n{error}", flush=True)
            continue
        results.write(seen, kept)
        said = f"{one.verdict} {one.primary or ''}"
        print(f" {one.seconds:5.1f} s  exit {one.exit_code}  {said}", flush=True)


def _problems(stack: Stack, seen: results.Results) -> Iterator[str]:
    """Yield the unexpected and missing results of a stack."""
    missing = []
    for attempt in (each for each in ATTEMPTS if each.fits(stack)):
        if (here := seen.get((stack.name, attempt.name))) is None:
            missing.append(attempt.name)
        else:
            yield from (f"{stack.name} {attempt.name}: {each}" for each in differences(stack, attempt, here))
    if missing:
        yield f"{stack.name}: not tried: {', '.join(missing)}"


def _try(stack: Stack, attempt: Attempt, python: str, folder: Path) -> Seen:
    """Run one attempt; its output is kept in the folder beside the environments."""
    log = folder / "logs" / stack.name / f"{attempt.name}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="watched-") as home:
        seen = watch(torchrun(attempt.program, *attempt.options), Path(home) / "home", python, keep=log)
    clean = scrubber(HERE, REPOSITORY, folder / stack.name)
    seen.raised = [clean.text(each) for each in seen.raised]
    seen.exceptions = [clean.text(each) for each in seen.exceptions]
    return seen


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="versions", description=(__doc__ or "").partition("\n")[0])
    option = parser.add_argument
    option("--folder", type=Path, required=True, help="where environments and results are kept")
    option("--stack", action="append", metavar="DEEPSPEED", help="only this one; may be given again")
    option("--again", action="store_true", help="run what was seen already, too")
    option(
        "--torch",
        default="torch==2.13.0",
        help="the requirement for torch that pip gets (default: %(default)s)",
    )
    options = parser.parse_args()
    options.folder = options.folder.resolve()
    if unknown := set(options.stack or ()) - {stack.deepspeed for stack in STACKS}:
        parser.error(f"no such stack: {', '.join(sorted(unknown))}")
    return options


if __name__ == "__main__":
    sys.exit(main())
