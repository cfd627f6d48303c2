"""A large file's stretches sieved elsewhere: the reading is that of one process."""

from __future__ import annotations

import random
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stallwatch_exporter.postmortem.diagnose import Options, diagnose_paths
from stallwatch_logs import parallel_reading
from stallwatch_logs.file_reading import Engines, FileRead, read_file
from stallwatch_logs.inputs import Limits
from stallwatch_logs.log_files import LogFile, expand
from stallwatch_logs.parallel_reading import Parallel
from stallwatch_logs.sharing import Sharing, batches, ranges_of
from stallwatch_logs.workers import Pages, Range
from stallwatch_rules.lines.reader import MAX_LINE
from stallwatch_rules.matching.matcher import Matcher
from stallwatch_rules.pages.catalogue import Catalogue
from stallwatch_rules.pages.patterns import hyperscan
from stallwatch_rules.reading import RunReading
from stallwatch_rules.scan.state import ScanSizes

pytestmark = pytest.mark.skipif(hyperscan is None, reason="hyperscan has no wheel for this platform")

SMALL = ScanSizes(chunk=MAX_LINE + 4096, section=2, head=8192, head_segments=8, tail=8192)
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
NOTICE = "Invalidate trace cache @ step {}: expected module 9, but got module 3"


@pytest.fixture(scope="module")
def engines(catalogue: Catalogue) -> Engines:
    return Engines.of(Matcher(catalogue))


def log_of(seed: int, longest: int) -> bytes:
    rng = random.Random(seed)
    lines = []
    for step in range(12_000):
        clock = f"{step // 3600:02d}:{step // 60 % 60:02d}:{step % 60:02d}"
        lines.append(f"[2026-05-02 {clock}] step {step}/90000 loss 1.5")
        if rng.random() < 0.02:
            lines.append(NOTICE.format(step))
        if rng.random() < 0.001:
            lines += [
                "Traceback (most recent call last):",
                '  File "a.py", line 1, in f',
                "ValueError: none knows",
            ]
        if rng.random() < 0.002:
            lines.append("x" * rng.randrange(longest) + OOM)
    return "\n".join([*lines, OOM, ""]).encode()


@pytest.fixture(params=[200, 200_000], ids=["short lines", "lines too long for a cell"])
def file(request: pytest.FixtureRequest, tmp_path: Path) -> LogFile:
    path = tmp_path / "train.log"
    path.write_bytes(log_of(1, request.param))
    return expand([str(path)], limits=Limits())[0][0]


def alone(file: LogFile, engines: Engines, monkeypatch: pytest.MonkeyPatch) -> tuple[RunReading, FileRead]:
    reading = RunReading(engines.matcher.catalogue, engines.matcher)
    return reading, read_file(file, reading, engines, lambda _: None, SMALL)


def shared(
    file: LogFile, engines: Engines, executor: Executor, sizes: ScanSizes, told: list[int]
) -> tuple[RunReading, FileRead]:
    """Read a file whose ranges an executor scans."""
    catalogue = engines.matcher.catalogue
    jobs, pages = batches([file], ranges_of(file, sizes)), Pages.of(catalogue)
    assert any(isinstance(task, Range) for job in jobs for task in job)
    reading = RunReading(catalogue, engines.matcher)
    sharing = Sharing(
        [file], engines, sizes, told.append, executor=executor, window=2, jobs=jobs, pages=pages, here=True
    )
    ((_, read),) = sharing.read(reading)
    return reading, read


class Helper(Executor):
    """Does each job at once, or fails as it is told to."""

    def __init__(self, act: Callable[[int], Exception | None]) -> None:
        self._act = act
        self.jobs = 0

    def submit(self, fn: Any, /, *args: Any, **_: Any) -> Future[Any]:
        self.jobs += 1
        future: Future[Any] = Future()
        error = self._act(self.jobs)
        if error is None:
            future.set_result(fn(*args))
        else:
            future.set_exception(error)
        return future


@pytest.mark.parametrize(
    "helper",
    [
        ThreadPoolExecutor(2),
        Helper(lambda _: None),
        Helper(lambda _: BrokenProcessPool("a process was killed")),
        Helper(lambda count: MemoryError() if count % 2 else None),
    ],
    ids=["threads", "at once", "broken", "failing at times"],
)
def test_the_reading_is_that_of_one_process(
    file: LogFile, engines: Engines, helper: Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, read_alone = alone(file, engines, monkeypatch)
    told: list[int] = []
    reading, read = shared(file, engines, helper, SMALL, told)
    assert read == read_alone
    assert reading.diagnose() == expected.diagnose()
    assert told == sorted(told) and told[-1] == file.size
    assert not isinstance(helper, Helper) or helper.jobs


@pytest.mark.parametrize("looks", [2, 4])
def test_the_time_may_be_over_between_two_ranges(
    tmp_path: Path, engines: Engines, monkeypatch: pytest.MonkeyPatch, looks: int
) -> None:
    """What was read until then counts."""
    path = tmp_path / "train.log"
    path.write_bytes(log_of(1, 200))
    (file,), _ = expand([str(path)])
    whole, read_whole = shared(file, engines, Helper(lambda _: None), SMALL, [])
    left = iter([1.0] * (looks + 1))  # one more for the look at the head that says which ranges there are
    monkeypatch.setattr(Limits, "time_left", property(lambda _: next(left, 0.0)))
    reading, read = shared(file, engines, Helper(lambda _: None), SMALL, [])
    assert read.out_of_time
    assert 0 < read.bytes < read_whole.bytes == file.size
    assert reading.diagnose().progress.last_step < whole.diagnose().progress.last_step


def test_what_has_no_ranges(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_bytes(log_of(1, 200))
    (log,) = expand([str(path)], limits=Limits())[0]
    assert len(ranges_of(log, SMALL)) == 2
    assert not ranges_of(log, ScanSizes())  # it is too small
    path.write_bytes(b"\x1f\x8b\x08" + path.read_bytes())
    (packed,) = expand([str(path)], limits=Limits())[0]
    assert not ranges_of(packed, SMALL)
    with path.open("wb") as out:
        out.truncate(1 << 24)
        out.seek(0, 2)
        out.write(b"step 1\n")
    (sparse,) = expand([str(path)], limits=Limits())[0]
    assert not ranges_of(sparse, SMALL)


def test_processes_sieve_a_large_file(
    file: LogFile, catalogue: Catalogue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They take the usual sizes, so the ranges here are made of those."""
    sizes = ScanSizes()
    data = Path(file.path).read_bytes()
    with Path(file.path).open("ab") as out:
        while out.tell() < 12 * sizes.chunk:
            out.write(data)
    few = Range(file.path, 2, 4), Range(file.path, 4, 8)
    monkeypatch.setattr(parallel_reading, "ranges_of", lambda *_: list(few))
    diagnosis, problems = diagnose_paths(
        [file.path], Options(catalogue, parallel=Parallel(workers=2, worth=0))
    )
    assert not problems
    assert diagnosis.stats.lines == Path(file.path).read_bytes().count(b"\n")
    assert diagnosis.primary is not None and diagnosis.primary.rule == "cuda-oom"


def test_ranges_behind_a_lead_are_counted(tmp_path: Path, engines: Engines) -> None:
    sizes = replace(SMALL, rule_lines=5, dense=0)
    lines = [f"step {at}/9000 loss 2.5 {'.' * 400}" for at in range(2400)]
    lines[0], lines[300:2100:3] = "{'loss': 2.5}", ["KeyError: 'param_groups'"] * 600
    path = tmp_path / "train.log"
    path.write_text("".join(f"gpu07: {line}\n" for line in lines))
    (file,), _ = expand([str(path)], limits=Limits())
    with ThreadPoolExecutor(1) as pool:
        reading, _ = shared(file, engines, pool, sizes, [])
    counts = {finding.rule: finding.count for finding in reading.diagnose().findings}
    assert counts["resume-checkpoint-failed"] == 600
