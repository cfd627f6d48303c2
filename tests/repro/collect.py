"""Write the project's own corpus again: run the small programs of ``cases/`` and keep what they print.

    python tests/repro/collect.py            # all cases (some minutes)
    python tests/repro/collect.py zero.no_sync healthy.ddp

Each log goes to tests/corpus/logs/, with the machine's own paths taken out (scrub.py), and a line about it to
tests/corpus/cases.jsonl: what was run, with which versions, and what a diagnosis should say.
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

HERE = Path(__file__).resolve().parent
CORPUS = HERE.parent / "corpus"
SECONDS = 120  #: after which a case that hangs is ended


def collect(case: Case, clean: Scrubber, work: Path) -> dict[str, Any]:
    """Run one case, keep its log, and tell of it."""
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


def main() -> None:
    by_name = {case.program: case for case in CASES}
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("programs", nargs="*", metavar="MODULE.FUNCTION", help="default: all of them")
    options = parser.parse_args()
    if unknown := set(options.programs) - set(by_name):
        parser.error(f"no such case: {', '.join(sorted(unknown))}")
    index = CORPUS / "cases.jsonl"
    known = {}
    if index.exists():
        known = {row["id"]: row for row in map(json.loads, index.read_text().splitlines())}
    with tempfile.TemporaryDirectory(prefix="corpus-") as folder:
        clean = scrubber(HERE, HERE.parent.parent)
        for count, program in enumerate(chosen := options.programs or list(by_name), 1):
            case = by_name[program]
            print(f"{count}/{len(chosen)} {program}", flush=True)
            known[case.name] = collect(case, clean, Path(folder))
            print(f"    exit code {known[case.name]['exit_code']}", flush=True)
    order = [case.name for case in CASES]
    rows = sorted(
        (row for row in known.values() if row["id"] in order), key=lambda row: order.index(row["id"])
    )
    index.write_text("".join(json.dumps(row) + "\n" for row in rows))


if __name__ == "__main__":
    main()
