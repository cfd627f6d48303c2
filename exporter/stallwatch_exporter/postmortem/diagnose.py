"""The diagnosis of a run from the logs that it left."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

from stallwatch_exporter.postmortem.recorded import Recorded, kept_stacks, recorded, with_kept, with_recorded
from stallwatch_logs.inputs import InputProblem, Limits
from stallwatch_logs.log_files import LogFile, OnProgress, expand, from_stream, natural, on_bytes_read
from stallwatch_logs.parallel_reading import Parallel, read_all
from stallwatch_rules.lines.reader import MAX_LINE
from stallwatch_rules.matching.matcher import Matcher
from stallwatch_rules.pages.catalogue import Catalogue
from stallwatch_rules.progress.curve import series_of
from stallwatch_rules.reading import MAX_STREAMS, RunReading
from stallwatch_rules.records import Diagnosis, JobTold, Stats
from stallwatch_rules.stacks.concluding import stands_elsewhere, with_stacks
from stallwatch_rules.text.digest import counted
from stallwatch_rules.text.reported import iso

if TYPE_CHECKING:
    from stallwatch_logs.jobs import Job
    from stallwatch_rules.failures.unexplained import Baseline
    from stallwatch_rules.stacks.records import StallStacks

__all__ = [
    "InputProblem",
    "JobsResult",
    "NoSuchJob",
    "Parallel",
    "RunResult",
    "diagnose_each",
    "diagnose_jobs",
    "diagnose_paths",
    "diagnose_run",
    "diagnose_streams",
]

_NAMED_JOBS = 20
_NAMED = 3  # files of those that were passed over


def diagnose_paths(
    paths: Sequence[str | os.PathLike[str]],
    *,
    catalogue: Catalogue,
    progress: OnProgress | None = None,
    limits: Limits | None = None,
    baseline: Baseline | None = None,
    parallel: Parallel | None = None,
) -> tuple[Diagnosis, list[InputProblem]]:
    """Read files, folders, globs, archives and ``-`` and diagnose the run that they tell of.

    ``parallel`` lets several processes read; the diagnosis is the same.

    What cannot be read is in the problems, and the rest is diagnosed. ``baseline`` is what a healthy run
    says (``baseline.read_baseline``): lines that it does not have are reported as new.
    """
    started = time.monotonic()
    files, problems = expand(paths, limits=limits)
    if parallel is not None:
        parallel = replace(parallel, limits=limits)
    return diagnose_run(
        files,
        problems,
        paths,
        catalogue=catalogue,
        progress=progress,
        baseline=baseline,
        parallel=parallel,
        started=started,
    ).diagnosis, problems


class RunResult(NamedTuple):
    """The diagnosis of one run, and when its log ends."""

    diagnosis: Diagnosis
    last_time: str | None  #: in the log, ISO 8601


def diagnose_run(
    files: Sequence[LogFile],
    problems: list[InputProblem],
    paths: Sequence[str | os.PathLike[str]],
    *,
    catalogue: Catalogue,
    progress: OnProgress | None,
    baseline: Baseline | None,
    parallel: Parallel | None,
    matcher: Matcher | None = None,
    started: float,
) -> RunResult:
    """Diagnose files as one run. If `paths` is the folder that Stallwatch kept of it, that tells more.

    What cannot be read is added to `problems`; all of those are in the diagnosis.
    """
    known = recorded(paths)
    stacks = kept_stacks(paths)
    diagnosis, last_time = _diagnose(
        files,
        problems,
        catalogue,
        progress,
        started,
        known,
        baseline,
        parallel,
        matcher,
        stacks,
    )
    diagnosis = with_recorded(diagnosis, known)
    diagnosis = with_kept(diagnosis, problems, paths)
    return RunResult(diagnosis if stacks is None else with_stacks(diagnosis, stacks), last_time)


@dataclass
class JobsResult:
    """The diagnosis to report, and a line for each job."""

    diagnosis: Diagnosis  #: of the only one, or of the one that is `reported`
    problems: list[InputProblem] = field(default_factory=list)
    jobs: list[JobTold] = field(default_factory=list)  #: the newest first; empty where there is one
    ways: dict[str, list[str]] = field(default_factory=dict)  #: job → paths that mean it alone


class NoSuchJob(ValueError):
    """The files are of no job of this name."""

    def __init__(self, name: str, known: Sequence[str]) -> None:
        shown = ", ".join([*known[:_NAMED_JOBS], *(["…"] if len(known) > _NAMED_JOBS else [])])
        there = f"there are {shown}" if known else "the files are taken for those of one run"
        super().__init__(f"no job is called {name}: {there}")


def diagnose_jobs(
    paths: Sequence[str | os.PathLike[str]],
    *,
    catalogue: Catalogue,
    progress: OnProgress | None = None,
    limits: Limits | None = None,
    baseline: Baseline | None = None,
    parallel: Parallel | None = None,
    job: str | None = None,
    together: bool = False,
) -> JobsResult:
    """Read files, folders, globs, archives and ``-``, and diagnose each job that they are of.

    With ``job`` only that one is read, with ``together`` all as one run. Each job is compared with the
    ``baseline``. Raises `NoSuchJob`.
    """
    started = time.monotonic()
    files, problems = expand(paths, limits=limits)
    if parallel is not None:
        parallel = replace(parallel, limits=limits)
    diagnose = functools.partial(
        diagnose_run,
        catalogue=catalogue,
        baseline=baseline,
        parallel=parallel,
        matcher=Matcher(catalogue),
    )
    jobs = [] if together or len(files) < 2 else _jobs_among(files)
    if job is not None and files:
        chosen = [one for one in jobs if one.name == job]
        if not chosen:
            raise NoSuchJob(job, [one.name for one in jobs])
        (only,) = chosen
        files, paths, jobs = only.files, only.folders, []
    if not jobs:
        result = diagnose(files, problems, paths, progress=progress, started=started)
        return JobsResult(result.diagnosis, problems)
    from stallwatch_exporter.postmortem.several_jobs import diagnose_several

    return diagnose_several(jobs, problems, diagnose, progress)


def _jobs_among(files: Sequence[LogFile]) -> list[Job]:
    from stallwatch_exporter.postmortem.own_runs import own_runs  # most calls are of one file
    from stallwatch_logs.jobs import jobs_among

    return jobs_among(files, own_runs(file.path for file in files if file.path))


def diagnose_each(
    paths: Sequence[str | os.PathLike[str]],
    *,
    catalogue: Catalogue,
    progress: OnProgress | None = None,
    baseline: Baseline | None = None,
) -> tuple[list[tuple[str, Diagnosis]], list[InputProblem]]:
    """The same for logs of different runs: every file by itself, with its name, in their order."""
    files, problems = expand(paths)
    matcher = Matcher(catalogue)
    total = sum(file.size for file in files)
    done = 0
    found: list[tuple[str, Diagnosis]] = []
    for file in files:
        wrong: list[InputProblem] = []
        started = time.monotonic()
        diagnosis, _ = _diagnose([file], wrong, catalogue, None, started, baseline=baseline, matcher=matcher)
        problems += wrong
        found.append((file.name, diagnosis))
        done += file.size
        if progress is not None:
            progress(done, total)
    return found, problems


def diagnose_streams(
    streams: Sequence[tuple[str, BinaryIO]],
    *,
    catalogue: Catalogue,
    progress: OnProgress | None = None,
    limits: Limits | None = None,
) -> tuple[Diagnosis, list[InputProblem]]:
    """The same for open, seekable streams, such as uploads, each with its file's name."""
    started = time.monotonic()
    files: list[LogFile] = []
    problems: list[InputProblem] = []
    for name, stream in streams:
        found, wrong = from_stream(name, stream, limits=limits)
        files += found
        problems += wrong
    return _diagnose(files, problems, catalogue, progress, started).diagnosis, problems


def _diagnose(
    files: Sequence[LogFile],
    problems: list[InputProblem],
    catalogue: Catalogue,
    progress: OnProgress | None,
    started: float,
    known: Recorded | None = None,
    baseline: Baseline | None = None,
    parallel: Parallel | None = None,
    matcher: Matcher | None = None,
    stacks: StallStacks | None = None,
) -> RunResult:
    reading = RunReading(catalogue, matcher)
    reading.baseline = baseline
    stats = Stats()
    notes: list[str] = []
    binary: list[str] = []
    for file, read in read_all(files, reading, on_bytes=on_bytes_read(progress, files), parallel=parallel):
        problems += read.problems
        binary += read.binary
        if read.bytes:
            stats.files += 1
            stats.bytes += read.bytes
            stats.lines += read.lines
        if read.cut:
            notes.append(
                f"{file.name}: {counted(read.cut, 'line')} longer than {MAX_LINE // 1024} KiB: read at the "
                "beginning and the end"
            )
    if reading.unread:
        problems.append(_too_many(len(reading.unread), min(reading.unread, key=natural)))
    if binary:
        notes.append(_passed_over(binary))
    known = known or Recorded()
    diagnosis = reading.diagnose(
        ending=known.ending,
        ending_text=known.ending_text,
        failed=known.failed,
        threshold=known.threshold,
        stalled=known.stall is not None,
        waited=known.waited,
        ended_at=known.ended_at,
        memory=known.memory,
        left=known.left,
        elsewhere=stands_elsewhere(stacks),
        crash=known.crash,
        codes=known.codes,
    )
    diagnosis.series = series_of(reading.streams)
    stats.seconds = round(time.monotonic() - started, 3)
    diagnosis.stats = stats
    diagnosis.notes = [*diagnosis.notes, *notes, *map(str, problems)]
    return RunResult(diagnosis, _last_time(reading))


def _last_time(reading: RunReading) -> str | None:
    times = [(one.last_time, one.last_zoned) for one in reading.streams.values() if one.last_time is not None]
    if not times:
        return None
    last, zoned = max(times)
    return iso(last, zoned=zoned)


def _passed_over(binary: Sequence[str]) -> str:
    """That files were found, but are no text."""
    shown = ", ".join(binary[:_NAMED]) + (", …" if len(binary) > _NAMED else "")
    files = "1 file is" if len(binary) == 1 else f"{len(binary)} files are"
    return f"{files} binary and no log, and not read: {shown}"


def _too_many(count: int, first: str) -> InputProblem:
    """That a run has more files than one diagnosis holds."""
    others = f" and {counted(count - 1, 'other file')}" if count > 1 else ""
    return InputProblem(
        first,
        None,
        f"this file{others} were not read: one diagnosis holds {MAX_STREAMS:,} files and ranks",
        "diagnose the folders one by one, or --each of the files by itself",
    )
