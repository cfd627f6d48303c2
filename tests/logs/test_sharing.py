"""Files shared between processes: their distribution, and the handling of a failing process."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import pytest

from stallwatch_exporter.postmortem.diagnose import Options, diagnose_paths
from stallwatch_logs import workers
from stallwatch_logs.log_files import LogFile
from stallwatch_logs.parallel_reading import FORKS_AT_ONCE, Parallel
from stallwatch_logs.sharing import BATCH, Tasks, batches
from stallwatch_logs.workers import Board, Job, Pages, Wanted, read_away
from stallwatch_rules.pages.catalogue import Catalogue, load_catalogue
from stallwatch_rules.records import Diagnosis
from stallwatch_rules.scan.state import ScanSizes


@pytest.fixture(scope="module")
def catalogue(tmp_path_factory: pytest.TempPathFactory) -> Catalogue:
    return load_catalogue(cache=tmp_path_factory.mktemp("cache"))


@pytest.fixture
def logs(tmp_path: Path) -> list[str]:
    """Write the logs of twelve ranks, one of which failed."""
    for rank in range(12):
        text = "".join(f"step {step}/900 loss 1.5\n" for step in range(1, 20 + rank))
        if rank == 7:
            text += "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
        (tmp_path / f"rank{rank}.log").write_text(text)
    return sorted(map(str, tmp_path.glob("*.log")))


class Scripted(Executor):
    """Executor whose jobs succeed at once, fail, or never end, as the test decides."""

    def __init__(self, act: Callable[[int], Exception | None]) -> None:
        self._act = act
        self.jobs: list[Job] = []
        self.sizes: list[int] = []

    def submit(self, fn: Any, /, *args: Any, **_: Any) -> Future[Any]:
        (job,) = args
        self.jobs.append(job)
        self.sizes.append(len(pickle.dumps(job)))
        future: Future[Any] = Future()
        error = self._act(len(self.jobs))
        if error is None:
            future.set_result(pickle.loads(pickle.dumps(fn(job))))
        else:
            future.set_exception(error)
        return future


def diagnosed(logs: list[str], catalogue: Catalogue, parallel: Parallel | None = None) -> Diagnosis:
    diagnosis, problems = diagnose_paths(logs, Options(catalogue, parallel=parallel))
    assert problems == []
    diagnosis.stats.seconds = 0
    return diagnosis


def _file(size: int, path: str = "x") -> LogFile:
    return LogFile("x", None, False, size, lambda: iter(()), path)


def numbers(jobs: list[Tasks]) -> list[list[int]]:
    return [[task.number for task in job if isinstance(task, Wanted)] for job in jobs]


def test_small_files_are_batched_and_large_files_come_first() -> None:
    files = [_file(100), _file(9 * BATCH), _file(100, path=""), _file(2 * BATCH), _file(100)]
    assert numbers(batches(files)) == [[1], [3], [0, 4]]
    many = numbers(batches([_file(BATCH // 5)] * 10))
    assert sorted(number for batch in many for number in batch) == list(range(10))
    assert {len(batch) for batch in many} <= {2, 4}
    assert batches([]) == []


def test_ten_thousand_small_files_are_few_jobs() -> None:
    assert 2 <= len(batches([_file(1000)] * 10_000)) < 40


@pytest.mark.parametrize(
    "act",
    [
        lambda _: BrokenProcessPool("a process was killed"),
        lambda _: RuntimeError("nobody knows why"),
        lambda count: MemoryError() if count % 2 else None,
    ],
    ids=["broken", "failing", "failing at times"],
)
def test_jobs_that_fail_elsewhere_are_read_here(
    catalogue: Catalogue,
    logs: list[str],
    monkeypatch: pytest.MonkeyPatch,
    act: Callable[[int], Exception | None],
) -> None:
    monkeypatch.setattr("stallwatch_logs.sharing.BATCH", 1)
    executor = Scripted(act)
    assert diagnosed(logs, catalogue, Parallel(executor=executor)) == diagnosed(logs, catalogue)
    assert executor.jobs


def test_broken_executor_is_not_used_again(catalogue: Catalogue, logs: list[str]) -> None:
    def refuse(_: int) -> None:
        raise BrokenProcessPool("it died before")

    executor = Scripted(refuse)
    assert diagnosed(logs, catalogue, Parallel(executor=executor)) == diagnosed(logs, catalogue)
    assert len(executor.jobs) == 1


def test_failure_within_a_file_affects_only_that_file(
    catalogue: Catalogue, logs: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = LogFile.chunks

    def chunks(self: LogFile, *args: Any, **options: Any) -> Any:
        if self.name.endswith("rank3.log"):
            raise ArithmeticError("a mistake of ours")
        return real(self, *args, **options)

    monkeypatch.setattr(LogFile, "chunks", chunks)
    with ThreadPoolExecutor(2) as executor:
        diagnosis, problems = diagnose_paths(logs, Options(catalogue, parallel=Parallel(executor=executor)))
    assert [Path(problem.path).name for problem in problems] == ["rank3.log"]
    assert "ArithmeticError: a mistake of ours" in problems[0].message
    assert diagnosis.primary is not None and diagnosis.primary.rank == 7
    assert diagnosis.stats.files == 11


def test_number_of_submitted_jobs_is_bounded(
    catalogue: Catalogue, logs: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stallwatch_logs.sharing.BATCH", 1)
    monkeypatch.setattr("stallwatch_logs.parallel_reading.MAX_WORKERS", 1)
    given, done, most = [], [], 0
    real = workers.read_away

    class Counted(ThreadPoolExecutor):
        def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
            nonlocal most
            given.append(fn)
            most = max(most, len(given) - len(done))
            return super().submit(fn, *args, **kwargs)

    def counted(job: Job) -> Any:
        read = real(job)
        done.append(job)
        return read

    monkeypatch.setattr("stallwatch_logs.sharing.read_away", counted)
    with Counted(1) as executor:
        assert diagnosed(logs, catalogue, Parallel(workers=2, executor=executor)).verdict == "failed"
    assert 1 < most <= 4


def test_rules_are_unpacked_once_for_all_jobs(
    catalogue: Catalogue, logs: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stallwatch_logs.sharing.BATCH", 1)
    monkeypatch.setattr(workers, "_engines", {})
    made = []
    real = workers.Matcher
    monkeypatch.setattr(workers, "Matcher", lambda known: made.append(known) or real(known))
    executor = Scripted(lambda _: None)
    diagnosed(logs, catalogue, Parallel(executor=executor))
    assert len(executor.jobs) == len(logs) and len(made) == 1


def test_rules_are_in_shared_memory_for_started_processes(
    catalogue: Catalogue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pipe holds only part of the rules, so this process would block until the other one reads."""
    monkeypatch.setattr(workers, "_engines", {})
    pages = workers.Pages.of(catalogue)
    shared = pages.shared()
    assert not isinstance(shared.packed, bytes) and bytes(shared.packed) == pages.packed
    assert workers.prepared(shared).matcher.catalogue == catalogue


def test_progress_increases_up_to_the_total(catalogue: Catalogue, logs: list[str]) -> None:
    for parallel in (Parallel(), Parallel(workers=2, worth=0)):
        messages: list[tuple[int, int]] = []
        diagnose_paths(
            logs,
            Options(
                catalogue,
                parallel=parallel,
                progress=lambda *both, messages=messages: messages.append(both),  # type: ignore[misc]
            ),
        )
        whole = sum(Path(log).stat().st_size for log in logs)
        assert messages == sorted(messages) and messages[-1] == (whole, whole)


def test_stopped_process_ends_its_work() -> None:
    board = Board(2)
    board.report(1, 500)
    assert board.read() == [0, 500]
    board.stop()
    with pytest.raises(workers.Stopped):
        board.report(0, 1)


def test_process_without_rules_raises_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "_engines", {})
    with pytest.raises(LookupError):
        read_away(Job((), ScanSizes(), None, Pages("", b"", None)))


KILLED = """
import os, signal, sys
from stallwatch_logs import sharing
from stallwatch_logs import workers
from stallwatch_logs.parallel_reading import Parallel
from stallwatch_exporter.postmortem.diagnose import Options, diagnose_paths
from stallwatch_rules.pages.catalogue import load_catalogue
from pathlib import Path

def killing(job):
    os.kill(os.getpid(), signal.SIGKILL)

if __name__ == "__main__":
    sharing.read_away = killing
    catalogue = load_catalogue(cache=Path(sys.argv[1]))
    parallel = Parallel(workers=2, worth=0, may_fork=sys.argv[2] == "fork")
    assert parallel.forks == parallel.may_fork
    diagnosis, problems = diagnose_paths(sys.argv[3:], Options(catalogue, parallel=parallel))
    print(diagnosis.verdict, diagnosis.primary.rank, diagnosis.stats.files, len(problems))
"""

FORKED = """
import sys
from pathlib import Path
from stallwatch_logs import parallel_reading
from stallwatch_exporter.postmortem.diagnose import Options, diagnose_paths
from stallwatch_rules.pages.catalogue import load_catalogue

begin = parallel_reading.begin

def told(*all):
    begin(*all)
    Path(sys.argv[2]).touch()

parallel_reading.begin = told
catalogue = load_catalogue(cache=Path(sys.argv[1]))
parallel = parallel_reading.Parallel(workers=2, worth=0, may_fork=True)
diagnosis, problems = diagnose_paths(sys.argv[3:], Options(catalogue, parallel=parallel))
print(diagnosis.verdict, diagnosis.primary.rank, diagnosis.stats.files, len(problems))
"""

REFUSED = """
import multiprocessing, os, sys, threading
from pathlib import Path
from stallwatch_logs.parallel_reading import Parallel
from stallwatch_exporter.postmortem.diagnose import Options, diagnose_paths
from stallwatch_rules.pages.catalogue import load_catalogue

catalogue = load_catalogue(cache=Path(sys.argv[1]))
fork, start, forked = os.fork, threading.Thread.start, []

def refusing():
    if len(forked) == int(sys.argv[2]):
        raise BlockingIOError(11, "Resource temporarily unavailable")
    forked.append(child := fork())
    return child

def refused(thread):
    raise RuntimeError("can't start new thread")

os.fork, threading.Thread.start = refusing, refused
parallel = Parallel(workers=4, worth=0, may_fork=True)
diagnosis, problems = diagnose_paths(sys.argv[3:], Options(catalogue, parallel=parallel))
print(diagnosis.verdict, diagnosis.primary.rank, diagnosis.stats.files, len(problems), end=" ")
print(len(forked), multiprocessing.active_children())
"""

PARENT = """
import os, sys, threading
from stallwatch_logs import parallel_reading
from stallwatch_logs import workers
from stallwatch_logs.file_reading import Engines
from stallwatch_rules.matching.matcher import Matcher
from stallwatch_rules.pages.catalogue import Catalogue

if sys.argv[1] == "thread":  # here and in the process that is started
    workers._asked_for_a_death_signal = lambda: False

def hang():
    print(os.getpid(), flush=True)
    threading.Event().wait()

if __name__ == "__main__":
    rules = Catalogue.of([])
    engines = Engines.of(Matcher(rules)) if sys.argv[1] == "forked" else None
    with parallel_reading._processes(1, workers.Pages.of(rules), workers.Board(1), engines) as pool:
        pool.submit(hang).result()
"""


forking = pytest.mark.skipif(
    sys.platform != "linux" or sys.version_info < FORKS_AT_ONCE, reason="processes are not forked here"
)


@forking
def test_forked_processes_give_the_same_result(tmp_path: Path, catalogue: Catalogue, logs: list[str]) -> None:
    """The test uses a separate process, because this one may have threads."""
    script, begun = tmp_path / "forked.py", tmp_path / "begun"
    script.write_text(FORKED)
    cache = str(catalogue.store.folder)
    done = subprocess.run(
        [sys.executable, script, cache, begun, *logs], capture_output=True, text=True, timeout=300, check=True
    )
    assert done.stdout.split() == ["failed", "7", "12", "0"]
    assert begun.exists()


@forking
@pytest.mark.parametrize("allowed", [1, 3], ids=["a process", "the thread"])
def test_all_files_are_read_here_if_forking_fails(
    tmp_path: Path, catalogue: Catalogue, logs: list[str], allowed: int
) -> None:
    script = tmp_path / "refused.py"
    script.write_text(REFUSED)
    command = [sys.executable, script, str(catalogue.store.folder), str(allowed), *logs]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    assert done.stdout.split() == ["failed", "7", "12", "0", str(allowed), "[]"]


def test_old_python_versions_do_not_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 10, 4))
    assert not Parallel(workers=2, may_fork=True).forks


def test_processes_with_threads_do_not_fork() -> None:
    end = threading.Event()
    thread = threading.Thread(target=end.wait)
    thread.start()
    try:
        assert not Parallel(workers=2, may_fork=True).forks
    finally:
        end.set()
        thread.join()


@pytest.mark.skipif(os.name != "posix", reason="kills processes by signals")
@pytest.mark.parametrize("way", ["spawn", pytest.param("fork", marks=forking)])
def test_diagnosis_survives_killed_processes(
    tmp_path: Path, catalogue: Catalogue, logs: list[str], way: str
) -> None:
    script = tmp_path / "killed.py"
    script.write_text(KILLED)
    cache = str(catalogue.store.folder)
    done = subprocess.run(
        [sys.executable, script, cache, way, *logs], capture_output=True, text=True, timeout=300, check=True
    )
    assert done.stdout.split() == ["failed", "7", "12", "0"]


@pytest.mark.skipif(os.name != "posix", reason="kills processes by signals")
@pytest.mark.parametrize("way", ["signal", "thread", pytest.param("forked", marks=forking)])
def test_processes_do_not_outlive_a_killed_parent(tmp_path: Path, way: str) -> None:
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    parent = subprocess.Popen([sys.executable, script, way], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    os.kill(child, 0)  # the child runs
    os.kill(parent.pid, signal.SIGKILL)
    try:
        parent.communicate(timeout=120)  # the pipe ends when the child has closed it too
    except subprocess.TimeoutExpired:
        os.kill(child, signal.SIGKILL)
        pytest.fail("the process outlived its parent")


def test_interrupt_ends_the_processes(catalogue: Catalogue, logs: list[str]) -> None:
    def interrupt(_done: int, _total: int) -> None:
        raise KeyboardInterrupt

    parallel = Parallel(workers=2, worth=0)
    with pytest.raises(KeyboardInterrupt):
        diagnose_paths(logs, Options(catalogue, parallel=parallel, progress=interrupt))
    for process in multiprocessing.active_children():
        assert wait([process.sentinel], 120)  # ready when the child has ended


def test_daemonic_process_reads_without_child_processes(
    catalogue: Catalogue, logs: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(multiprocessing.current_process()._config, "daemon", True)  # type: ignore[attr-defined]
    assert diagnosed(logs, catalogue, Parallel(workers=2, worth=0)).verdict == "failed"
