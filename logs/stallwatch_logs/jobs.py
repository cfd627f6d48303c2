"""Jobs that log files belong to, by their names and by folders that hold one run's logs each."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from stallwatch_logs.file_names import of_one_training
from stallwatch_logs.job_names import by_job
from stallwatch_logs.log_files import LogFile, natural


class RunFolders(NamedTuple):
    """What folders of runs say of the files in them."""

    jobs: dict[str, str]  #: file → job
    folders: dict[str, list[str]]  #: job → its folders


@dataclass(frozen=True)
class Job:
    """One of several jobs."""

    name: str
    files: list[LogFile]
    folders: list[str]  #: that hold its run, if there is nothing beside them

    def written(self) -> float | None:
        """When its files were written last, by the disk."""
        times: list[float] = []
        for file in self.files:
            try:
                times.append(os.stat(file.path).st_mtime)  # noqa: PTH116
            except (OSError, ValueError):
                continue  # a member of an archive, standard input
        return max(times, default=None)


def jobs_among(files: Sequence[LogFile], own: RunFolders) -> list[Job]:
    """The jobs, by their names; empty where all files may be of one run."""
    owned = {file.name: own.jobs[file.path] for file in files if file.path in own.jobs}
    paths = {file.name: file.path for file in files if file.plain}

    def one_training(job_of: Mapping[str, str]) -> bool:
        below: dict[str, list[str]] = {}
        for name, job in job_of.items():
            below.setdefault(job, []).append(paths.get(name, ""))
        return of_one_training(below)

    found = by_job([file.name for file in files], owned, one_training)
    by_name: dict[str, list[LogFile]] = {}
    for file in files:
        by_name.setdefault(file.name, []).append(file)
    jobs = []
    for name in sorted(found, key=natural):
        names = found[name]
        folders = own.folders.get(name, []) if all(owned.get(one) == name for one in names) else []
        jobs.append(Job(name, [file for one in dict.fromkeys(names) for file in by_name[one]], folders))
    return jobs
