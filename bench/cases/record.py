"""Rerecord the hangs of the programs in ``programs/`` and ``bench/live_programs/``.

    python bench/cases/record.py OUT [--only GLOB] [--jobs 2]

Each program runs under the real ``stallwatch run`` with real thresholds. The recorder copies the run's folder
15 seconds after the hang was reported, or 200 seconds after the hang began. The copy contains the files that
a user finds while a run is stalled. Any tool can use the logs, which include the time of each line.
Stallwatch also uses its own observations (stacks of the processes).
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import fnmatch
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

HERE = Path(__file__).resolve().parent
BENCH = HERE.parent
sys.path[:0] = [str(BENCH), str(BENCH.parent / "tests" / "repro"), str(HERE / "programs")]

from live_programs.table import FAILING, FORMS  # noqa: E402
from machine import free_port  # noqa: E402

AFTER_EVENT, AFTER_REPORT, AT_MOST = 200.0, 15.0, 360.0
PROGRAM_HANGS = HERE / "programs" / "hangs.py"
#: Parts of the names of live programs that are not recorded because they do not stall within a minute, such as
#: programs in which a start or a request takes ten minutes.
_NOT = (
    "never-joins",
    "straggles",
    "slow-down",
    "truncated",
    "nan",
    "request-without",
    "8th",
    "killed",
    "lines",
)
_NO_HANG = ("exception", "oom", "nan", "slow", "truncated", "trace-cache", "straggler", "start")


def hangs() -> list[dict[str, Any]]:
    """Return a row for each hang to record, with its ID, its command, and its correct answer."""
    from hangs import SCENARIOS

    rows = []
    for number, (name, (ranks, place, rank)) in enumerate(SCENARIOS.items()):
        for seed in (number + 1, number + 101) if number % 3 == 0 else (number + 1,):
            form = FORMS["python"] if ranks == 1 else FORMS["torchrun2"].replace("node 2", f"node {ranks}")
            rows.append(
                {
                    "id": f"hang-{name.replace('_', '-')}-{seed}",
                    "form": form,
                    "program": f"{PROGRAM_HANGS} {name}",
                    "seed": seed,
                    "place": place,
                    "rank": rank,
                }
            )
    for case in FAILING:
        expected = case.expected
        if expected is None or expected.cause in _NO_HANG or any(part in case.name for part in _NOT):
            continue
        if case.form in ("tail", "no-probe") or expected.limit in (
            "start",
            "crash",
            "trace-cache",
            "patience",
        ):
            continue
        rows.append(
            {
                "id": f"hang-live-{case.name}",
                "form": FORMS[case.form],
                "program": f"{BENCH / 'live_programs' / case.file} {case.scenario}",
                "seed": 11,
                "place": expected.place
                or ("stopped by a signal" if expected.cause == "stopped" else case.file),
                "rank": expected.rank,
            }
        )
    return rows


def record(row: dict[str, Any], out: Path) -> str:
    """Run one program until its hang is reported, and keep the run's folder."""
    work = Path(tempfile.mkdtemp(prefix="hang-"))
    (work / "work").mkdir()
    events = work / "event"
    command = shlex.split(row["form"].format(python=sys.executable, program=row["program"], port=free_port()))
    environ = {name: value for name, value in os.environ.items() if not name.startswith("STALLWATCH_")}
    environ |= {
        "STALLWATCH_HOME": str(work / "home"),
        "STALLWATCH_BENCH_EVENT": str(events),
        "STALLWATCH_BENCH_SEED": str(row["seed"]),
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONUNBUFFERED": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "DS_ACCELERATOR": "cpu",
    }
    stallwatch = str(Path(sys.executable).with_name("stallwatch"))
    with (work / "terminal").open("wb") as terminal:
        process = subprocess.Popen(
            [stallwatch, "run", "--port", "0", "--name", row["id"], "--", *command],
            cwd=work / "work",
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=terminal,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    began, event, reported = time.monotonic(), None, None
    try:
        while time.monotonic() - began < AT_MOST and process.poll() is None:
            time.sleep(0.5)
            if event is None and events.exists() and "BENCH EVENT" in events.read_text():
                event = time.monotonic()
            incidents = [*(work / "home" / "runs").glob("*/incidents.jsonl")]
            if event and reported is None and any(path.stat().st_size for path in incidents):
                reported = time.monotonic()
            if reported and time.monotonic() > reported + AFTER_REPORT:
                break
            if event and time.monotonic() > event + AFTER_EVENT:
                break
        found = [path.parent for path in (work / "home" / "runs").glob("*/agent.json")]
        target = out / row["id"]
        shutil.rmtree(target, ignore_errors=True)
        if found and event:
            shutil.copytree(found[0], target)
    finally:
        family = []
        with contextlib.suppress(psutil.NoSuchProcess):
            family = psutil.Process(process.pid).children(recursive=True)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        for child in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
        process.wait()
    if not event or not target.exists():
        tail = (work / "terminal").read_text(errors="replace")[-600:]
        return f"{row['id']}: no event after {time.monotonic() - began:.0f} s: {tail}"
    hung = re.search(r"BENCH EVENT ([\d.]+)", events.read_text())
    (target / "case.json").write_text(
        json.dumps(row | {"hung_at": float(hung[1]) if hung else None, "snapshot_at": time.time()}) + "\n"
    )
    shutil.rmtree(work, ignore_errors=True)
    return f"{row['id']}: {'reported' if reported else 'not reported'} after {(reported or time.monotonic()) - event:.0f} s"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", default="*")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--list", action="store_true")
    options = parser.parse_args()
    rows = [row for row in hangs() if fnmatch.fnmatch(row["id"], options.only)]
    rows = [row for row in rows if not (options.out / row["id"] / "case.json").exists()]
    if options.list:
        print("\n".join(row["id"] for row in rows), len(rows), sep="\n")
        return
    options.out.mkdir(parents=True, exist_ok=True)
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        for outcome in pool.map(lambda row: record(row, options.out), rows):
            print(outcome, flush=True)


if __name__ == "__main__":
    main()
