"""Several jobs, each diagnosed by itself, one after the other.

One job's report is whole: that of the newest in trouble, else of the newest that is a training. Of the others
a line is kept, so that a thousand jobs need no more memory than a few.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import msgspec

from stallwatch_exporter.postmortem.diagnose import JobsResult, RunResult
from stallwatch_logs.inputs import InputProblem
from stallwatch_logs.jobs import Job
from stallwatch_logs.log_files import LogFile, OnProgress
from stallwatch_rules.records import IN_TROUBLE, Diagnosis, JobTold
from stallwatch_rules.report import phrases
from stallwatch_rules.text.digest import parse_iso
from stallwatch_rules.text.reported import iso


def diagnose_several(
    jobs: Sequence[Job],
    problems: list[InputProblem],
    diagnose: Callable[..., RunResult],
    progress: OnProgress | None,
) -> JobsResult:
    """Diagnose each job by ``diagnose``, which is ``diagnose_run`` with what is the same for all."""
    total, done = sum(file.size for job in jobs for file in job.files), 0
    kept = _Kept()
    for job in jobs:
        wrong: list[InputProblem] = []
        before = done

        def within(read: int, _of: int, before: int = before) -> None:
            if progress is not None:
                progress(before + read, total)

        result = diagnose(job.files, wrong, job.folders, progress=within, started=time.monotonic())
        done += sum(file.size for file in job.files)
        kept.take(job, result, wrong)
    diagnosis, rows, of_it = kept.newest_first()
    others = [*problems, *(one for one in kept.problems if one not in of_it)]
    diagnosis = msgspec.structs.replace(diagnosis, notes=[*diagnosis.notes, *map(str, others)])
    ways = {job.name: way for job in jobs if (way := _way(job))}
    return JobsResult(diagnosis, [*problems, *kept.problems], rows, ways)


def _way(job: Job) -> list[str]:
    """Paths that mean this job and nothing else, where it has files of its own."""
    if len(job.folders) == 1:
        return job.folders
    return [file.path for file in job.files] if all(file.path for file in job.files) else []


class _Kept:
    """A line for each job, and the few diagnoses that may turn out to be the one to report.

    Which job is the newest is known in the end only: their times decide if all have one, else their names,
    in whose order they come.
    """

    def __init__(self) -> None:
        self.problems: list[InputProblem] = []
        self._rows: list[tuple[float | None, JobTold]] = []
        self._best: dict[tuple[bool, int], tuple[float, int, Diagnosis, list[InputProblem]]] = {}

    def take(self, job: Job, result: RunResult, problems: list[InputProblem]) -> None:
        """The next job."""
        self.problems += problems
        when = parse_iso(result.last_time) if result.last_time is not None else job.written()
        number = len(self._rows)
        weight = _weight(result.diagnosis)
        for by_time in (False, True):
            rank = float("-inf") if when is None or not by_time else when
            for asked in range(weight + 1):
                best = self._best.get((by_time, asked))
                if best is None or best[:2] <= (rank, number):
                    self._best[by_time, asked] = rank, number, result.diagnosis, problems
        last_time = result.last_time if result.last_time is not None else iso(when)
        self._rows.append((when, job_line(job.name, result.diagnosis, last_time, job.files)))

    def newest_first(self) -> tuple[Diagnosis, list[JobTold], list[InputProblem]]:
        """The diagnosis to report, the line of each job, and what could not be read of that one."""
        by_time = all(when is not None for when, _ in self._rows)
        weight = max(weight for _, weight in self._best)
        _, reported, diagnosis, problems = self._best[by_time, weight]
        self._rows[reported][1].reported = True
        order = sorted(
            range(len(self._rows)),
            key=lambda number: (self._rows[number][0] if by_time else 0.0, number),
            reverse=True,
        )
        return diagnosis, [self._rows[number][1] for number in order], problems


def _weight(diagnosis: Diagnosis) -> int:
    """A job in trouble is reported before all others, and what is no training after them."""
    return 2 if diagnosis.verdict in IN_TROUBLE else int(diagnosis.verdict != "no-training-log")


def job_line(name: str, diagnosis: Diagnosis, last_time: str | None, files: Sequence[LogFile]) -> JobTold:
    """A job's line."""
    primary, progress = diagnosis.primary, diagnosis.progress
    return JobTold(
        name,
        diagnosis.verdict,
        phrases.badge(diagnosis),
        primary.rule if primary is not None else None,
        primary.confidence if primary is not None else None,
        phrases.job_title(diagnosis),
        progress.last_step,
        progress.total_steps,
        progress.finished,
        last_time,
        [file.name for file in files],
    )
