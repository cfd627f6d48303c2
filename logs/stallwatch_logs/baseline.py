"""A healthy run's lines, read from its logs, so that another run's new lines are known."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from stallwatch_logs.inputs import InputProblem, Limits
from stallwatch_logs.log_files import expand
from stallwatch_logs.parallel_reading import Parallel, read_all
from stallwatch_logs.progress import OnProgress, on_bytes_read
from stallwatch_rules.failures.unexplained import Baseline
from stallwatch_rules.pages.catalogue import Catalogue
from stallwatch_rules.reading import RunReading
from stallwatch_rules.records import Verdict

READ_WHOLE = 16 * 1024 * 1024  #: bytes on disk; line by line that is a matter of seconds


class Healthy(NamedTuple):
    """A run to compare with."""

    baseline: Baseline
    verdict: Verdict  #: whether it is healthy indeed
    problems: list[InputProblem]


def read_baseline(
    paths: Sequence[str | os.PathLike[str]],
    *,
    catalogue: Catalogue,
    limits: Limits | None = None,
    parallel: Parallel | None = None,
    progress: OnProgress | None = None,
) -> Healthy:
    """Read a healthy run's files, folders, globs and archives."""
    reading, problems = read_run(
        paths, catalogue=catalogue, limits=limits, parallel=parallel, progress=progress
    )
    baseline = Baseline.of(stream.templates for stream in reading.streams.values())
    return Healthy(baseline, reading.diagnose().verdict, problems)


def read_run(
    paths: Sequence[str | os.PathLike[str]],
    *,
    catalogue: Catalogue,
    limits: Limits | None = None,
    parallel: Parallel | None = None,
    progress: OnProgress | None = None,
) -> tuple[RunReading, list[InputProblem]]:
    """Read a run as for its diagnosis, for those who need more of it than that.

    Every line of a small one is read; of a large one the sieve leaves out lines that say nothing is wrong, so
    that a wording which only its middle has may be taken for unknown.
    """
    files, problems = expand(paths, limits=limits)
    reading = RunReading(catalogue)
    whole = sum(file.size for file in files) <= READ_WHOLE
    if parallel is not None:
        parallel = replace(parallel, limits=limits)
    report = on_bytes_read(progress, files)
    for _, read in read_all(files, reading, parallel=parallel, on_bytes=report, whole=whole):
        problems += read.problems
    return reading, problems
