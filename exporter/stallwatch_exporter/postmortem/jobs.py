"""If the user passed the logs of several jobs together, diagnose the jobs one after another.

Only one job gets a full report: the newest job with a problem or, if no job has a problem, the newest job
with training output. For every other job, only a summary is kept, so memory use hardly grows with the number
of jobs.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from msgspec.structs import replace

from stallwatch_exporter.postmortem.diagnose import (
    OUT_OF_TIME,
    Options,
    Paths,
    RunResult,
    diagnose_in_turn,
    diagnose_run,
    time_limit_note,
)
from stallwatch_exporter.postmortem.run_folders import folders_of_run, stored_runs_of
from stallwatch_logs.inputs import InputProblem
from stallwatch_logs.jobs import Job, jobs_among
from stallwatch_rules.locale import contains_message
from stallwatch_rules.records import Diagnosis, JobSummary
from stallwatch_rules.report import phrases
from stallwatch_rules.text.digest import parse_iso
from stallwatch_rules.text.display import iso

_NAMED_JOBS = 20


@dataclass
class JobsResult:
    """The diagnosis to report, and a summary of each job."""

    diagnosis: Diagnosis  #: diagnosis of the only job, or of the `reported` job
    problems: list[InputProblem] = field(default_factory=list)
    jobs: list[JobSummary] = field(default_factory=list)  #: newest job first (empty if there is only one job)
    paths: dict[str, list[str]] = field(default_factory=dict)  #: paths that contain only this job, by job


class NoSuchJob(ValueError):
    """Raised if the files belong to no job with the requested name."""

    def __init__(self, name: str, known: Sequence[str]) -> None:
        shown = ", ".join([*known[:_NAMED_JOBS], *(["…"] if len(known) > _NAMED_JOBS else [])])
        existing = f"the jobs are {shown}" if known else "Stallwatch treats the files as one run"
        super().__init__(f"no job is called {name}; {existing}")


def diagnose_jobs(
    paths: Paths, options: Options, *, job: str | None = None, together: bool = False
) -> JobsResult:
    """Read files, folders, globs, archives, and standard input (``-``), and diagnose each of their jobs.

    If `job` is set, read only that job. If `together` is true, read all files as one run.

    Raises:
        NoSuchJob: The files belong to no job with that name.
    """
    started = time.monotonic()
    with options.expanded(paths) as (files, problems, rank_files, run_folders, notes, silent):
        folders, jobs = folders_of_run(files, run_folders), list[Job]()
        if not together and len(files) > 1:
            kept = stored_runs_of([file for file in files if file.path or file.folder], run_folders)
            jobs = jobs_among(files, kept)
        if job is not None and files:
            chosen = next((known for known in jobs if known.name == job), None)
            if chosen is None:
                raise NoSuchJob(job, [known.name for known in jobs])
            files, folders, jobs, silent = chosen.files, list(map(Path, chosen.folders)), [], ()
        if jobs:
            return _diagnose_several(jobs, problems, options)
        result = diagnose_run(
            files, problems, folders, options, started=started, rank_files=rank_files, silent=silent
        )
        result.diagnosis.notes = [*notes, *result.diagnosis.notes]
        return JobsResult(result.diagnosis, problems)


def _diagnose_several(jobs: Sequence[Job], problems: list[InputProblem], options: Options) -> JobsResult:
    kept, unread_files, unread_bytes = _Kept(), 0, 0
    results = diagnose_in_turn([(job.files, list(map(Path, job.folders))) for job in jobs], options)
    for job, (result, problems_of_job) in zip(jobs, results, strict=True):
        kept.take(job, result, problems_of_job)
        unread_files += result.diagnosis.stats.unread_files
        unread_bytes += result.diagnosis.stats.unread_bytes
    diagnosis, rows, reported = kept.newest_first()
    others = [*problems, *(problem for problem in kept.problems if problem not in reported)]
    # An empty file does not affect the reported job.
    notes = [*diagnosis.notes, *(str(problem) for problem in others if not problem.harmless)]
    if unread_files > diagnosis.stats.unread_files:  # other jobs also have unread files
        first = time_limit_note(unread_files, unread_bytes)
        notes = [first, *(note for note in notes if not contains_message(note, *OUT_OF_TIME))]
        stats = replace(diagnosis.stats, unread_files=unread_files, unread_bytes=unread_bytes)
        diagnosis = replace(diagnosis, stats=stats)
    diagnosis = replace(diagnosis, notes=notes)
    paths_of_jobs = {job.name: paths for job in jobs if (paths := _paths_of(job))}
    return JobsResult(diagnosis, [*problems, *kept.problems], rows, paths_of_jobs)


def _paths_of(job: Job) -> list[str]:
    """Return paths that contain only this job, or an empty list if any of its files is in an archive."""
    if not all(file.path for file in job.files):
        return []
    return job.folders or [file.path for file in job.files]


class _Kept:
    """Summaries of the jobs, and two diagnoses, one of which is reported at the end.

    If all jobs have a time, the newest job is the job with the latest time. Otherwise, the newest job is the
    last job by name, because jobs are read in the order of their names. Whether all jobs have a time is known
    only at the end.
    """

    def __init__(self) -> None:
        self.problems: list[InputProblem] = []
        self._rows: list[tuple[float | None, JobSummary]] = []
        # The best job so far, keyed by whether the times of the jobs are compared. Each value contains the
        # job's order (weight, time, and number), its diagnosis, and its problems.
        self._best: dict[bool, tuple[tuple[int, float, int], Diagnosis, list[InputProblem]]] = {}

    def take(self, job: Job, result: RunResult, problems: list[InputProblem]) -> None:
        """Add the diagnosis of the next job."""
        self.problems += problems
        when = parse_iso(result.last_time) if result.last_time is not None else job.written()
        for by_time in (False, True):
            moment = when if by_time and when is not None else -math.inf
            order = (_weight(result.diagnosis), moment, len(self._rows))
            if by_time not in self._best or self._best[by_time][0] < order:
                self._best[by_time] = order, result.diagnosis, problems
        last_time = result.last_time if result.last_time is not None else iso(when)
        self._rows.append((when, _row(job, result.diagnosis, last_time)))

    def newest_first(self) -> tuple[Diagnosis, list[JobSummary], list[InputProblem]]:
        """Return the diagnosis to report, the summary of each job, and the problems of the reported job."""
        by_time = all(when is not None for when, _ in self._rows)
        (*_, reported), diagnosis, problems = self._best[by_time]
        self._rows[reported][1].reported = True
        rows = list(reversed(self._rows))
        if by_time:
            rows.sort(key=lambda row: row[0] or 0.0, reverse=True)
        return diagnosis, [row for _, row in rows], problems


def _weight(diagnosis: Diagnosis) -> int:
    """Return a job's priority: 2 if it has a problem, 1 if it has only training output, and 0 otherwise."""
    return 2 if diagnosis.in_trouble else int(diagnosis.verdict != "no-training-log")


def _row(job: Job, diagnosis: Diagnosis, last_time: str | None) -> JobSummary:
    primary, progress = diagnosis.primary, diagnosis.progress
    return JobSummary(
        job.name,
        diagnosis.verdict,
        phrases.badge(diagnosis),
        primary.rule if primary is not None else None,
        primary.confidence if primary is not None else None,
        phrases.job_title(diagnosis),
        progress.last_step,
        progress.total_steps,
        progress.finished,
        last_time,
        [file.name for file in job.files],
        interrupted_by=diagnosis.interrupted_by,
    )
