"""What a healthy run says, read from its logs, so that another run's new lines can be told."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NamedTuple

from stallwatch_exporter.inputs import InputProblem, Limits
from stallwatch_exporter.logfiles import expand
from stallwatch_rules.catalogue import Catalogue
from stallwatch_rules.lines import LineReader
from stallwatch_rules.novelty import Baseline
from stallwatch_rules.reading import RunReading
from stallwatch_rules.records import Verdict


class Healthy(NamedTuple):
    """A run to compare with."""

    baseline: Baseline
    verdict: Verdict  #: whether it is healthy indeed
    problems: list[InputProblem]


def read_baseline(
    paths: Sequence[str | os.PathLike[str]], *, catalogue: Catalogue, limits: Limits | None = None
) -> Healthy:
    """Read a healthy run's files, folders, globs and archives."""
    reading, problems = read_whole(paths, catalogue=catalogue, limits=limits)
    baseline = Baseline.of(stream.templates for stream in reading.streams.values())
    return Healthy(baseline, reading.diagnose().verdict, problems)


def read_whole(
    paths: Sequence[str | os.PathLike[str]], *, catalogue: Catalogue, limits: Limits | None = None
) -> tuple[RunReading, list[InputProblem]]:
    """Read every line, for those who need more of a run than its diagnosis."""
    files, problems = expand(paths, limits=limits)
    reading = RunReading(catalogue)
    for file in files:
        reader = LineReader(file.name, file.rank)
        for chunk in file.chunks(problems):
            reading.feed(reader.feed(chunk))
        reading.feed(reader.finish())
    return reading, problems
