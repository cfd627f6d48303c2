"""Run the programs of ``programs/table.py`` and keep their output: ``python bench/cases/run_real.py OUT``."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path[:0] = [str(HERE / "programs"), str(ROOT / "tests" / "repro")]

from scrub import Scrubber, scrubber  # noqa: E402
from table import FAILING, FINE, Run  # noqa: E402

SECONDS = 300  #: time limit of a program


def keep(run: Run, seed: int, out: Path, work: Path) -> str:
    """Run a program under bash, as a job script does, and keep its output and its exit code."""
    name = f"{'fine' if not run.cause else 'fault'}-{run.scenario.replace('_', '-')}-{seed}"
    path = out / f"{name}.log.gz"
    if path.exists():
        return f"{name}: exists already"
    program = f"{sys.executable} {HERE / 'programs' / run.file} {run.scenario}"
    if run.ranks:
        tee = "--tee 3" if seed % 2 else ""
        program = program.replace(
            sys.executable,
            f"{sys.executable} -m torch.distributed.run --standalone --nproc-per-node {run.ranks} {tee}",
            1,
        )
    # The log of a real job also contains the shell's message about a signal.
    script = f"{program}\ncode=$?\nexit $code\n"
    environ = {name: value for name, value in os.environ.items() if not name.startswith("STALLWATCH_")}
    environ |= {"STALLWATCH_BENCH_SEED": str(seed), "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    environ |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "DS_ACCELERATOR": "cpu"}
    raw = work / "raw.log"
    with tempfile.TemporaryDirectory() as folder, raw.open("wb") as file:
        started = time.monotonic()
        child = subprocess.Popen(
            ["bash", "-c", script],
            cwd=folder,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code = child.wait(SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            return f"{name}: timed out"
        clean = Scrubber({**_folders(folder)}, "", (str(ROOT),))
        text = clean.text(raw.read_bytes().decode("utf-8", "surrogateescape"))
    with gzip.GzipFile(path, "wb", mtime=0) as packed:
        packed.write(text.encode("utf-8", "surrogateescape"))
    row = {
        "id": name,
        "file": path.name,
        "kind": run.kind,
        "cause": run.cause,
        "sign": run.sign,
        "exit_code": code,
    }
    row |= {
        "rank": run.rank,
        "ranks": run.ranks or 1,
        "command": program.replace(sys.executable, "python").replace(str(HERE), "bench/cases"),
    }
    (out / f"{name}.json").write_text(json.dumps(row) + "\n")
    return f"{name}: exit code {code}, {time.monotonic() - started:.0f} s, {len(text)} characters, sign {'found' if any(part in text for part in run.sign.split('|')) else 'missing'}"


def _folders(work: str) -> dict[str, str]:
    base = scrubber(Path(work), ROOT)
    return dict(base._folders) | {str(HERE / "programs"): "/opt/train"}


def main() -> None:
    out = Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as work:
        for number, run in enumerate([*FAILING, *FINE]):
            for count in range(run.seeds):
                print(keep(run, 3 + number + 11 * count, out, Path(work)), flush=True)


if __name__ == "__main__":
    main()
