"""A diagnosis with a time limit: the lines that were read count, and the unread part is reported."""

from __future__ import annotations

import gzip
import os
import pickle
import time
import zipfile
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from stallwatch_exporter.postmortem.diagnose import Options, diagnose_paths
from stallwatch_exporter.postmortem.jobs import diagnose_jobs
from stallwatch_logs import small_files
from stallwatch_logs.inputs import Limits, TimeIsUp
from stallwatch_logs.log_files import LogFile
from stallwatch_logs.parallel_reading import Parallel
from stallwatch_rules.locale import contains_message
from stallwatch_rules.messages import Message
from stallwatch_rules.pages.catalogue import Catalogue
from stallwatch_rules.records import Diagnosis

OOM = b"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
STEPS = b"".join(b"step %d/900 loss 1.5\n" % step for step in range(60))
LOG = STEPS + OOM


def time_for(monkeypatch: pytest.MonkeyPatch, looks: int) -> None:
    """Let the time run out after `looks` checks."""
    left = iter([1.0] * looks)
    monkeypatch.setattr(Limits, "time_left", property(lambda _: next(left, 0.0)))


class Stuck(Executor):
    """Executor that accepts jobs and never runs them."""

    def submit(self, *_args: Any, **_kwargs: Any) -> Future[Any]:
        return Future()


def over() -> Limits:
    return Limits(until=time.monotonic())


def is_out_of_time(diagnosis: Diagnosis) -> bool:
    return bool(diagnosis.notes) and contains_message(
        diagnosis.notes[0], "diagnosis.out-of-time", "diagnosis.out-of-time-size"
    )


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    for rank in range(4):
        (tmp_path / f"rank{rank}.log").write_bytes(LOG)
    return tmp_path


def test_nothing_is_reported_if_time_was_left(logs: Path, catalogue: Catalogue) -> None:
    limits = Limits(until=time.monotonic() + 3600)
    diagnosis, problems = diagnose_paths([logs], Options(catalogue, limits=limits))
    assert (diagnosis.verdict, problems) == ("failed", [])
    assert (diagnosis.stats.unread_files, diagnosis.stats.unread_bytes) == (0, 0)
    assert not is_out_of_time(diagnosis)


def test_unread_files_are_counted_at_the_time_limit(logs: Path, catalogue: Catalogue) -> None:
    with Options(catalogue).expanded([logs]) as (files, *_):
        pass
    assert len(files) == 4
    (logs / "rank0.log.gz").write_bytes(b"\x1f\x8b\x08")
    diagnosis, problems = diagnose_paths([*logs.glob("rank*.log")], Options(catalogue, limits=over()))
    assert problems == []
    assert (diagnosis.stats.files, diagnosis.stats.unread_files) == (0, 4)
    assert diagnosis.stats.unread_bytes == 4 * len(LOG)
    assert is_out_of_time(diagnosis)


def test_text_read_before_the_time_limit_is_diagnosed(
    tmp_path: Path, catalogue: Catalogue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The head of a large file was read when the time was over."""
    log = tmp_path / "train.log"
    log.write_bytes(STEPS + OOM + b"loading a shard of the data\n" * 200_000)
    time_for(monkeypatch, looks=1)
    diagnosis, problems = diagnose_paths([log], Options(catalogue, limits=Limits()))
    assert problems == []
    assert (diagnosis.verdict, diagnosis.primary and diagnosis.primary.rule) == ("failed", "cuda-oom")
    stats = diagnosis.stats
    assert stats.unread_files == 1
    assert 0 < stats.unread_bytes == log.stat().st_size - stats.bytes
    assert is_out_of_time(diagnosis)


def test_partly_read_log_is_not_reported_as_unfinished(
    tmp_path: Path, catalogue: Catalogue, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "train.log"
    log.write_bytes(STEPS + b"loading a shard of the data\n" * 200_000)
    ends = ("diagnosis.just-ends", "diagnosis.just-ends-somewhere")
    diagnosis, _ = diagnose_paths([log], Options(catalogue))
    assert any(contains_message(note, *ends) for note in diagnosis.notes)
    time_for(monkeypatch, looks=1)
    diagnosis, _ = diagnose_paths([log], Options(catalogue, limits=Limits()))
    assert diagnosis.verdict == "unfinished"
    assert is_out_of_time(diagnosis)
    assert not any(contains_message(note, *ends) for note in diagnosis.notes)


def test_executor_observes_the_time_limit(logs: Path, catalogue: Catalogue) -> None:
    with ThreadPoolExecutor(2) as executor:
        options = Options(catalogue, limits=over(), parallel=Parallel(executor=executor))
        diagnosis, problems = diagnose_paths([logs / f"rank{rank}.log" for rank in range(4)], options)
    assert problems == []
    assert diagnosis.stats.unread_files == 4


MANY_FILES = 600  #: small files, which are searched before any is read


@pytest.fixture(params=["plain", "packed", "zip"])
def many(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    folder = tmp_path / "many"
    folder.mkdir()
    if request.param == "zip":
        with zipfile.ZipFile(folder / "logs.zip", "w") as archive:
            for rank in range(MANY_FILES):
                archive.writestr(f"rank{rank}.log", LOG)
    for rank in range(MANY_FILES if request.param != "zip" else 0):
        packed = request.param == "packed"
        (folder / f"rank{rank}.log{'.gz' * packed}").write_bytes(gzip.compress(LOG) if packed else LOG)
    return folder


def parallel_by(how: str, pool: Executor) -> Parallel:
    return {
        "alone": Parallel(),
        "threads": Parallel(executor=pool),
        "processes": Parallel(2, worth=1),
        "stuck": Parallel(executor=Stuck()),
    }[how]


@pytest.mark.parametrize("how", ["alone", "threads", "processes", "stuck"])
def test_many_small_files_observe_the_time_limit(
    many: Path, catalogue: Catalogue, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr("stallwatch_logs.sharing.LATE", 0.0)
    monkeypatch.setattr("stallwatch_logs.small_files.LATE", 0.0)
    paths = sorted(many.iterdir())  # listing a folder takes time as well
    with ThreadPoolExecutor(2) as pool:
        options = Options(catalogue, limits=over(), parallel=parallel_by(how, pool))
        diagnosis, problems = diagnose_paths(paths, options)
    assert problems == []
    assert (diagnosis.stats.files, diagnosis.stats.unread_files) == (0, MANY_FILES)
    sizes = [path.stat().st_size for path in paths]
    assert diagnosis.stats.unread_bytes == (sum(sizes) if len(paths) > 1 else MANY_FILES * len(LOG))
    assert is_out_of_time(diagnosis)


def test_small_files_read_before_the_time_limit_are_diagnosed(
    tmp_path: Path, catalogue: Catalogue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The search takes half of the time, so the other half remains to read the chosen files."""
    for rank in range(MANY_FILES):
        (tmp_path / f"rank{rank}.log").write_bytes(STEPS + OOM * (rank == 20))
    searched = iter([None] * 550)
    text_of = small_files._text

    def text(file: LogFile) -> bytes | None:
        if next(searched, file) is file:
            raise TimeIsUp
        return text_of(file)

    monkeypatch.setattr(small_files, "_text", text)
    limits = Limits(until=time.monotonic() + 3600)
    diagnosis, problems = diagnose_paths([tmp_path], Options(catalogue, limits=limits))
    assert (diagnosis.verdict, problems) == ("failed", [])
    assert diagnosis.primary is not None and diagnosis.primary.rank == 20
    assert diagnosis.stats.unread_files == MANY_FILES - 550
    assert diagnosis.stats.files == 550
    (alike,) = [note for note in diagnosis.notes if contains_message(note, "diagnosis.files-alike")]
    assert isinstance(alike, Message) and alike.params["read"] < 100


def test_stuck_executor_is_abandoned_at_the_time_limit(
    logs: Path, catalogue: Catalogue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stallwatch_logs.sharing.LATE", 0.0)
    # A single file of one of several starts would be read in this process.
    options = Options(catalogue, limits=over(), parallel=Parallel(executor=Stuck()))
    paths = [logs / f"rank{rank}.log" for rank in range(4)]
    diagnosis, problems = diagnose_paths(paths, options)
    assert problems == []
    assert diagnosis.stats.unread_files == 4


def test_several_jobs_share_the_time(tmp_path: Path, catalogue: Catalogue) -> None:
    for job in (1001, 1002):
        (tmp_path / f"slurm-{job}.out").write_bytes(LOG)
    found = diagnose_jobs([*tmp_path.glob("*.out")], Options(catalogue, limits=over()))
    assert len(found.jobs) == 2
    assert found.diagnosis.stats.unread_files == 2
    assert found.diagnosis.stats.unread_bytes == 2 * len(LOG)
    (note,) = [note for note in found.diagnosis.notes if contains_message(note, "diagnosis.out-of-time-size")]
    assert note is found.diagnosis.notes[0]


@pytest.mark.parametrize("reader", ["stdin", "fifo"])
def test_open_pipe_is_read_until_the_time_limit(
    tmp_path: Path, catalogue: Catalogue, monkeypatch: pytest.MonkeyPatch, reader: str
) -> None:
    name = "-"
    if reader == "fifo":
        name = str(tmp_path / "pipe")
        os.mkfifo(name)
        end = os.open(name, os.O_RDWR)  # allows a write before there is a reader
    else:
        read, end = os.pipe()
        monkeypatch.setattr("sys.stdin", os.fdopen(read))
    os.write(end, LOG)
    try:
        options = Options(catalogue, limits=Limits(until=time.monotonic() + 0.5))
        diagnosis, problems = diagnose_paths([name], options)
    finally:
        os.close(end)
    assert (diagnosis.verdict, problems) == ("failed", [])
    assert (diagnosis.stats.bytes, diagnosis.stats.unread_files) == (len(LOG), 1)
    assert is_out_of_time(diagnosis)


def test_silent_pipe_is_reported_as_empty(tmp_path: Path, catalogue: Catalogue) -> None:
    """The other end of the pipe is never opened."""
    os.mkfifo(tmp_path / "pipe")
    options = Options(catalogue, limits=Limits(until=time.monotonic() + 0.1))
    _, problems = diagnose_paths([tmp_path / "pipe"], options)
    assert [problem.message for problem in problems] == ["no data was received"]


def test_remaining_time_is_sent_to_another_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """The monotonic clock of the other host has another origin."""
    packed = pickle.dumps(Limits(members=7, until=time.monotonic() + 50.0))
    monkeypatch.setattr("stallwatch_logs.inputs.time.monotonic", lambda: 10.0)
    there = pickle.loads(packed)
    assert there.members == 7
    assert 10.0 < there.until <= 60.0
    assert pickle.loads(pickle.dumps(Limits())) == Limits()
