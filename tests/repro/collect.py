"""Rebuild the project's own corpus: run the small programs of ``cases/`` and keep their output.

    python tests/repro/collect.py            # all cases (some minutes)
    python tests/repro/collect.py zero-no-sync healthy-ddp
    python tests/repro/collect.py --versions FOLDER

The output of older stacks comes from the folder of `make test-versions`; without that folder, those logs stay
unchanged.

Each log is written to tests/corpus/logs/, without the machine's own paths (scrub.py), and described by a line
in tests/corpus/cases.jsonl: the program, its versions, and the expected diagnosis.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from corpus_cases import CASES, Case
from record import environment
from scrub import Scrubber, scrubber
from versions import results
from versions.attempts import ATTEMPTS
from versions.stacks import STACKS
from watched import torchrun

HERE = Path(__file__).resolve().parent
CORPUS = HERE.parent / "corpus"
SECONDS = 120  #: seconds after which a hanging case is ended


def collect(case: Case, clean: Scrubber, work: Path) -> dict[str, Any]:
    """Run one case, keep its log, and return its description."""
    raw, log = work / "raw.log", CORPUS / "logs" / f"{case.name}.log"
    command = case.command(sys.executable)
    with raw.open("wb") as out:
        child = subprocess.Popen(
            command,
            cwd=HERE / "cases",
            env=environment(None) | {"PYTHONDONTWRITEBYTECODE": "1"},
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code = child.wait(SECONDS)
        finally:
            if child.poll() is None:
                os.killpg(child.pid, signal.SIGKILL)
    clean.copy(raw, log)
    return {
        "id": case.name,
        "signature": case.signature,
        "file": f"logs/{log.name}",
        "command": " ".join([Path(command[0]).name, *command[1:]]),
        "exit_code": code,
        "versions": {"python": platform.python_version()}
        | {name: importlib.metadata.version(name) for name in ("torch", "deepspeed", "transformers")},
    }


def take(case: Case, folder: Path) -> dict[str, Any]:
    """Return the output and description of an older stack from ``make test-versions`` (versions/)."""
    attempt = next(each for each in ATTEMPTS if each.name == case.program)
    stack = next(each for each in STACKS if each.deepspeed == case.stack)
    seen = results.read(folder / "observed.json")[stack.name, attempt.name]
    log = CORPUS / "logs" / f"{case.name}.log"
    clean = scrubber(HERE, HERE.parent.parent, folder / stack.name)
    clean.copy(folder / "logs" / stack.name / f"{attempt.name}.log", log)
    return {
        "id": case.name,
        "signature": case.signature,
        "file": f"logs/{log.name}",
        "command": " ".join(["python", *torchrun(attempt.program, *attempt.options)]),
        "exit_code": seen.exit_code,
        "versions": {name: seen.versions[name] for name in ("python", "torch", "deepspeed")}
        | ({"transformers": stack.transformers, "trl": stack.trl} if attempt.trainer else {}),
    }


def main() -> None:
    by_name = {case.name: case for case in CASES}
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("cases", nargs="*", metavar="CASE", help="default: all of them")
    parser.add_argument("--versions", type=Path, metavar="FOLDER", help="of `make test-versions`")
    options = parser.parse_args()
    if unknown := set(options.cases) - set(by_name):
        parser.error(f"no such case: {', '.join(sorted(unknown))}")
    index = CORPUS / "cases.jsonl"
    known = {}
    if index.exists():
        known = {row["id"]: row for row in map(json.loads, index.read_text().splitlines())}
    with tempfile.TemporaryDirectory(prefix="corpus-") as folder:
        clean = scrubber(HERE, HERE.parent.parent)
        for count, name in enumerate(chosen := options.cases or list(by_name), 1):
            case = by_name[name]
            print(f"{count}/{len(chosen)} {name}", flush=True)
            if not case.stack:
                known[name] = collect(case, clean, Path(folder))
            elif options.versions is not None:
                known[name] = take(case, options.versions.resolve())
            print(f"    exit code {known[name]['exit_code'] if name in known else 'not known'}", flush=True)
    order = [case.name for case in CASES]
    rows = sorted(
        (row for row in known.values() if row["id"] in order), key=lambda row: order.index(row["id"])
    )
    index.write_text("".join(json.dumps(row) + "\n" for row in rows))


if __name__ == "__main__":
    main()
