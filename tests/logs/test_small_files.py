"""Of many small files, some of each kind are read, and failures are found among all."""

from __future__ import annotations

import math
import tarfile
import zipfile
from collections.abc import Callable, Iterable
from concurrent.futures import BrokenExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import NoReturn

import pytest

from stallwatch_exporter.postmortem.diagnose import Options, diagnose_paths
from stallwatch_exporter.postmortem.jobs import diagnose_jobs
from stallwatch_logs import sharing, small_files
from stallwatch_logs.log_files import expand
from stallwatch_logs.parallel_reading import Parallel, read_all
from stallwatch_rules.matching.matcher import Matcher
from stallwatch_rules.messages import Message
from stallwatch_rules.pages.catalogue import Catalogue, load_catalogue
from stallwatch_rules.reading import RunReading
from stallwatch_rules.records import Diagnosis
from stallwatch_rules.report.phrases import finding_line
from stallwatch_rules.scan.patterns import ScanEngine, scan_engine
from stallwatch_rules.scan.similar_sources import (
    MANY,
    OF_FAILED,
    OF_HEALTHY,
    SourceOutline,
    choose,
    outline_sources,
)

FILES, BAD = 600, 421
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB.\n"
RAISED = 'Traceback (most recent call last):\n  File "train.py", line 8, in <module>\n    train()\n'


@pytest.fixture(scope="module")
def catalogue(tmp_path_factory: pytest.TempPathFactory) -> Catalogue:
    return load_catalogue(cache=tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="module")
def engine(catalogue: Catalogue) -> ScanEngine:
    found = scan_engine(Matcher(catalogue))
    if found is None:
        pytest.skip("hyperscan has no wheel for this platform")
    return found


def at(second: int) -> str:
    return f"2026-01-01 00:{second // 60:02d}:{second % 60:02d}"


def steps(rank: int, count: int = 20) -> str:
    return "".join(
        f"{at(10 * step)} INFO [Rank {rank}] step {step}/900 loss: {2 - step / 100:.3f} tok/s {9000 + rank}\n"
        for step in range(1, count + 1)
    )


def one_fails(rank: int) -> str:
    return steps(rank) + OOM * (rank == BAD)


def folder_of(folder: Path, text: Callable[[int], str], files: int = FILES) -> Path:
    for rank in range(files):
        path = folder / f"node{rank // 100}" / f"rank{rank}.log"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text(rank))
    return folder


def note_ids(diagnosis: Diagnosis) -> list[str]:
    return [note.id for note in diagnosis.notes if isinstance(note, Message)]


def place(diagnosis: Diagnosis) -> tuple[str | None, int | None, str, int]:
    primary = diagnosis.primary
    assert primary is not None
    return primary.rule, primary.rank, Path(primary.file).name, primary.line


@pytest.mark.usefixtures("engine")
def test_failed_rank_is_found_although_few_files_are_read(
    tmp_path: Path, catalogue: Catalogue, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    whole = sharing.read_file
    monkeypatch.setattr(
        sharing, "read_file", lambda file, *rest: read.append(file.name) or whole(file, *rest)
    )
    diagnosis, problems = diagnose_paths([folder_of(tmp_path, one_fails)], Options(catalogue))
    assert (diagnosis.verdict, problems) == ("failed", [])
    assert place(diagnosis) == ("cuda-oom", BAD, f"rank{BAD}.log", 21)
    assert len(read) <= OF_HEALTHY + 1
    assert (diagnosis.stats.files, diagnosis.stats.lines) == (FILES, FILES * 20 + 1)
    assert diagnosis.stats.bytes == sum(path.stat().st_size for path in tmp_path.rglob("*.log"))
    (note,) = (
        note for note in diagnosis.notes if isinstance(note, Message) and note.id.endswith("files-alike")
    )
    assert note.params == {"files": FILES, "read": len(read)}


@pytest.mark.usefixtures("engine")
def test_rank_that_stopped_early_is_found(tmp_path: Path, catalogue: Catalogue) -> None:
    folder_of(tmp_path, lambda rank: steps(rank, 9 if rank == BAD else 20))
    diagnosis, _ = diagnose_paths([tmp_path], Options(catalogue))
    assert diagnosis.progress.behind == [BAD]


@pytest.mark.usefixtures("engine")
def test_rank_without_a_reported_end_is_found(tmp_path: Path, catalogue: Catalogue) -> None:
    def text(rank: int) -> str:
        return steps(rank, 9) if rank == BAD else f"{steps(rank)}{at(400)} INFO Training finished\n"

    diagnosis, _ = diagnose_paths([folder_of(tmp_path, text)], Options(catalogue))
    assert (diagnosis.verdict, diagnosis.progress.behind) == ("finished", [BAD])


@pytest.mark.usefixtures("engine")
def test_rank_without_the_common_report_is_found(
    tmp_path: Path, catalogue: Catalogue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More files contain the report than are read."""
    monkeypatch.setattr("stallwatch_rules.scan.similar_sources.OF_FAILED", 100)

    def text(rank: int) -> str:
        timeout = (
            f"[rank{rank}]:[E0101 00:15:00.000000000 ProcessGroupNCCL.cpp:632] [Rank {rank}] Watchdog caught "
            "collective operation timeout: WorkNCCL(SeqNum=93, OpType=ALLREDUCE, NumelIn=8, NumelOut=8, "
            "Timeout(ms)=600000) ran for 600021 milliseconds before timing out.\n"
        )
        return steps(rank) + timeout * (rank != BAD)

    diagnosis, _ = diagnose_paths([folder_of(tmp_path, text)], Options(catalogue))
    assert place(diagnosis)[:2] == ("nccl-collective-timeout", BAD)
    (finding,) = diagnosis.findings
    assert (len(finding.ranks), finding.at_least) == (100, True)
    assert "≥ 100 times" in finding_line(finding, diagnosis.primary, "en")


@pytest.mark.usefixtures("engine")
def test_exceptions_are_counted_over_all_files(tmp_path: Path, catalogue: Catalogue) -> None:
    def text(rank: int) -> str:
        if rank % 10 != 3:
            return steps(rank)
        return f"{steps(rank, 9)}{RAISED}mydata.ShardError: shard {rank} is broken\n"

    diagnosis, _ = diagnose_paths([folder_of(tmp_path, text)], Options(catalogue))
    (unknown,) = diagnosis.unknown
    assert (diagnosis.verdict, unknown.count) == ("unknown-failure", FILES // 10)
    # Equally few of the other files were read, and they stand for all.
    assert unknown.ranks == diagnosis.progress.behind == [*range(3, FILES, 10)]


class _Broken(ThreadPoolExecutor):
    def submit(self, *_: object, **__: object) -> NoReturn:
        raise BrokenExecutor


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize("how", ["threads", "processes", "broken executor"])
def test_diagnosis_is_the_same_for_every_searcher(tmp_path: Path, catalogue: Catalogue, how: str) -> None:
    folder_of(tmp_path, one_fails)
    alone, _ = diagnose_paths([tmp_path], Options(catalogue))
    if how == "processes":
        shared, _ = diagnose_paths([tmp_path], Options(catalogue, parallel=Parallel(2, worth=1)))
    else:
        with (_Broken if how == "broken executor" else ThreadPoolExecutor)(2) as pool:
            shared, _ = diagnose_paths([tmp_path], Options(catalogue, parallel=Parallel(executor=pool)))
    for item in (alone, shared):
        item.stats.seconds = 0.0
    assert shared == alone


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize("form", ["zip", "tar"])
def test_members_of_an_archive_are_searched(tmp_path: Path, catalogue: Catalogue, form: str) -> None:
    logs = sorted(folder_of(tmp_path / "logs", one_fails).rglob("*.log"))
    packed = tmp_path / f"logs.{form}"
    if form == "zip":
        with zipfile.ZipFile(packed, "w") as archive:
            for path in logs:
                archive.write(path, path.name)
    else:
        with tarfile.open(packed, "w") as tar:
            for path in logs:
                tar.add(path, path.name)
    diagnosis, problems = diagnose_paths([packed], Options(catalogue))
    assert (place(diagnosis)[:2], problems) == (("cuda-oom", BAD), [])
    assert (diagnosis.stats.files, diagnosis.stats.lines) == (FILES, FILES * 20 + 1)
    assert "diagnosis.files-alike" in note_ids(diagnosis)


@pytest.mark.usefixtures("engine")
def test_each_job_is_searched_by_itself(tmp_path: Path, catalogue: Catalogue) -> None:
    for job in (1001, 1002):
        for task in range(FILES):
            text = steps(task) + OOM * (job == 1002 and task == BAD)
            (tmp_path / f"slurm-{job}_{task}.out").write_text(text)
    result = diagnose_jobs([tmp_path], Options(catalogue))
    assert {job.name: (job.verdict, len(job.files)) for job in result.jobs} == {
        "1001": ("unfinished", FILES),
        "1002": ("failed", FILES),
    }
    assert place(result.diagnosis)[2] == f"slurm-1002_{BAD}.out"


@pytest.mark.usefixtures("engine")
def test_files_that_cannot_be_searched_are_read(tmp_path: Path, catalogue: Catalogue) -> None:
    folder_of(tmp_path, steps)
    (tmp_path / "node4" / f"rank{BAD}.log").write_bytes((steps(BAD) + OOM).encode("utf-16"))
    (tmp_path / "node0" / "noise.log").write_bytes(b"\x7fELF" + bytes(4096))
    files, problems = expand([tmp_path])
    (tmp_path / "node5" / "rank555.log").unlink()
    reading = RunReading(catalogue)
    read = {Path(file.name).name: read for file, read in read_all(files, reading)}
    diagnosis = reading.diagnose()
    assert place(diagnosis)[:2] == ("cuda-oom", BAD)
    assert not problems and [problem.message for problem in read["rank555.log"].problems]
    assert len(read["noise.log"].binary) == 1


@pytest.mark.parametrize("without", ["many", "engine"])
def test_all_are_read_if_they_are_few_or_cannot_be_searched(
    tmp_path: Path, catalogue: Catalogue, monkeypatch: pytest.MonkeyPatch, without: str
) -> None:
    if without == "engine":
        monkeypatch.setattr(small_files, "MANY", 10)
        monkeypatch.setenv("STALLWATCH_MATCHER", "re2")
    diagnosis, _ = diagnose_paths([folder_of(tmp_path, one_fails, 40)], Options(catalogue))
    assert "diagnosis.files-alike" not in note_ids(diagnosis) and diagnosis.stats.lines == 800
    assert MANY > 40


def test_sources_with_equal_signs_and_end_are_one_kind(catalogue: Catalogue, engine: ScanEngine) -> None:
    def kinds(*texts: str) -> list[bytes]:
        return [
            outline_source.kind
            for outline_source in outline_sources(engine, frozenset(), [text.encode() for text in texts])
        ]

    same = kinds(steps(1), steps(20, 14), steps(300, 7).replace("\n", "\r\n"), steps(4).rstrip())
    assert len(set(same)) == 1
    different = kinds(
        steps(1),
        steps(1) + "worker exited with exit code 0\n",
        steps(1) + "worker exited with exit code 3\n",
        steps(1) + "done\n",
        "could not read the shard: failed\n" + steps(1),
        OOM + steps(1),
        steps(1).replace("1.80", "nan", 1) + "step 21/900 loss: nan\n",
    )
    assert len(set(different)) == len(different)


def test_sign_belongs_to_the_source_that_contains_it(engine: ScanEngine) -> None:
    texts = [steps(1), OOM, "no line end", steps(2) + OOM.strip(), "", "\r\n\n", steps(3)]
    failures = frozenset(range(len(engine.targets)))
    found = outline_sources(engine, failures, [text.encode() for text in texts])
    assert [item.failed for item in found] == [False, True, False, True, False, False, False]
    assert [item.lines for item in found] == [20, 1, 1, 21, 1, 2, 20]


def outline(kind: bytes, lines: int = 1, ended: float | None = None, texts: bytes = b"") -> SourceOutline:
    return SourceOutline(kind, texts, lines, ended is not None, math.inf if ended is None else ended)


def test_first_failed_sources_are_read() -> None:
    found = [outline(b"bad", ended=float(-number)) for number in range(2 * OF_FAILED)]
    chosen = choose([*found, outline(b"alone", ended=math.inf)])
    assert chosen.numbers == {*range(OF_FAILED, 2 * OF_FAILED + 1)}
    (others,) = chosen.alike.values()
    assert others == [*range(OF_FAILED)]


def test_unusual_sources_are_read() -> None:
    found: list[SourceOutline | None] = [outline(b"fine", 30) for _ in range(1000)]
    found[700], found[800] = outline(b"fine", 29), outline(b"fine", 31)
    found[900], found[950] = outline(b"fine", 30, texts=b"rare"), None
    chosen = choose(found)
    assert {700, 800, 900} <= chosen.numbers and 950 not in chosen.numbers
    assert len(chosen.numbers) <= OF_HEALTHY


def test_rare_kinds_are_read_before_common_ones() -> None:
    kinds: Iterable[bytes] = (b"%d" % (number // 2) for number in range(4000))
    chosen = choose([*map(outline, kinds), outline(b"rare"), outline(b"bad", ended=1.0)])
    assert {4000, 4001} <= chosen.numbers
    assert len(chosen.numbers) == 1025
