"""Inputs that are not normal logs are read in bounded memory: endless lines, holes, noise, many files."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

MEGABYTE = 1024 * 1024
LIMIT = 400 * MEGABYTE

CHILD = """
import json, re, sys
from pathlib import Path
from stallwatch_exporter.postmortem.diagnose import Options, diagnose_paths
from stallwatch_rules.pages.catalogue import load_catalogue
diagnosis, problems = diagnose_paths([sys.argv[1]], Options(load_catalogue(cache=Path(sys.argv[2]))))
print(json.dumps([
    diagnosis.verdict,
    diagnosis.primary.rule if diagnosis.primary else None,
    diagnosis.stats.files,
    len(problems),
    1024 * int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]),
]))
"""
OOM = b"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
STEPS = b"".join(b"step %d/900 loss 1.5\n" % step for step in range(60))


def endless_line(folder: Path) -> None:
    with (folder / "rank0.log").open("wb") as file:
        file.write(STEPS)
        for _ in range(150):
            file.write(b"x" * MEGABYTE)
        file.write(b"\n" + OOM)


def endless_bar(folder: Path) -> None:
    with (folder / "rank0.log").open("wb") as file:
        for step in range(400_000):
            file.write(b"\r %d%%|#    | %d/400000 [10:00<10:00,  1.00s/it]" % (step // 4000, step))
        file.write(b"\n" + OOM)


def hole(folder: Path) -> None:
    with (folder / "rank0.log").open("wb") as file:
        file.write(STEPS)
        file.seek(700 * MEGABYTE)
        file.write(STEPS + OOM)


def noise(folder: Path) -> None:
    with (folder / "rank0.log").open("wb") as file:
        # a file that starts with noise is not text
        file.write(b"loading a shard of the data\n" * 5000 + STEPS)
        for seed in range(12):
            file.write(random.Random(seed).randbytes(MEGABYTE))
        file.write(b"\n" + OOM)


def crowd(folder: Path) -> None:
    for number in range(1500):
        (folder / f"rank{number}.log").write_bytes(STEPS[:200])
    (folder / "rank7.log").write_bytes(STEPS + OOM)


def diagnosed_apart(folder: Path) -> tuple[str, str, int, int, int]:
    """Diagnose a folder in a process; return verdict, root cause, files, problems and peak memory."""
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(folder), os.environ["STALLWATCH_CACHE"]],
        capture_output=True,
        text=True,
        check=True,
    )
    verdict, primary, files, problems, peak = json.loads(done.stdout)
    return verdict, primary, files, problems, peak


@pytest.mark.parametrize("make", [endless_line, endless_bar, hole, noise, crowd])
@pytest.mark.skipif(
    sys.platform != "linux", reason="/proc tells the peak; getrusage counts the parent's, too"
)
def test_memory_is_bounded_for_unusual_inputs(tmp_path: Path, make: Callable[[Path], None]) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    make(folder)
    verdict, primary, files, problems, peak = diagnosed_apart(folder)
    assert (verdict, primary, problems) == ("failed", "cuda-oom", 0)
    assert files == len(list(folder.iterdir()))
    assert peak < LIMIT


@pytest.mark.skipif(sys.platform != "linux", reason="/proc tells the peak")
def test_memory_hardly_grows_with_the_number_of_small_files(tmp_path: Path) -> None:
    """A file that was not read takes 2 kB, and a file that is read takes ten times that."""
    pytest.importorskip("hyperscan", reason="without it, each file is read")
    peaks = []
    for files in (1000, 10_000):
        folder = tmp_path / str(files)
        folder.mkdir()
        for number in range(files):
            (folder / f"rank{number}.log").write_bytes(STEPS)
        (folder / "rank7.log").write_bytes(STEPS + OOM)
        verdict, primary, read, problems, peak = diagnosed_apart(folder)
        assert (verdict, primary, read, problems) == ("failed", "cuda-oom", files, 0)
        peaks.append(peak)
    assert peaks[1] - peaks[0] < 9000 * 4096
