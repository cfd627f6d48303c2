"""Read uploaded files in a separate process, so that a harmful file can harm only this process.

The `reading` module starts this process in the folder that contains the files, and sends the process the
`Task` (JSON) on standard input. The process writes JSON lines to standard output: for each progress report, a
line with ``[read, of]`` in bytes, and at the end, the line ``"done"``. It writes the result (`Answer`,
msgpack) to the file that the task names.
"""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from stallwatch_dashboard.uploads import context
from stallwatch_exporter.postmortem.diagnose import Options
from stallwatch_exporter.postmortem.jobs import diagnose_jobs
from stallwatch_exporter.settings import cache_home
from stallwatch_logs.inputs import InputProblem, Limits
from stallwatch_logs.parallel_reading import Parallel, read_baseline
from stallwatch_rules.decoding import from_json
from stallwatch_rules.pages.catalogue import load_catalogue
from stallwatch_rules.records import Diagnosis, JobSummary

_NICER = 5  # lowers the priority of this process, because users wait for the pages


@dataclass(frozen=True)
class Task:
    names: list[str]  #: paths of the files, relative to the current folder
    rules: list[str]
    limits: Limits
    workers: int
    answer: str  #: path of the file for the result
    healthy: list[str] = field(default_factory=list)  #: paths of a healthy run's files, for comparison
    job: str = ""  #: name of the job to read; if empty, the job that ``stallwatch diagnose`` would report
    together: bool = False  #: True if all files are read as one run


class Answer(msgspec.Struct):
    found: Diagnosis
    problems: list[InputProblem]
    context: str = ""  #: the lines around the evidence
    healthy: str = ""  #: the verdict on the run used for comparison
    jobs: list[JobSummary] = []  #: one entry for each job, if several were read


def main() -> None:
    os.nice(_NICER)
    task = from_json(sys.stdin.buffer.read(), Task)
    Path(task.answer).write_bytes(msgspec.msgpack.encode(_read(task)))
    _report("done")


def _read(task: Task) -> Answer:
    catalogue = load_catalogue([Path(folder) for folder in task.rules], cache=cache_home())
    parallel = Parallel(workers=task.workers)
    known, baseline, before = None, None, 0
    total = sum(Path(name).stat().st_size for name in task.names)

    def of_the_healthy(read: int, of: int) -> None:
        nonlocal before
        before = of
        _report([read, of + total])

    if task.healthy:
        known = read_baseline(
            task.healthy, catalogue=catalogue, limits=task.limits, parallel=parallel, progress=of_the_healthy
        )
        # If the healthy run could not be read, report the problem and compare nothing.
        baseline = known.baseline if known.baseline.exemplars else None
    result = diagnose_jobs(
        task.names,
        Options(
            catalogue,
            lambda read, of: _report([before + read, before + of]),
            task.limits,
            baseline,
            parallel,
            scratch=".",  # removed with the uploaded files, even if this process is killed
        ),
        job=task.job or None,
        together=task.together,
    )
    found = result.diagnosis
    answer = Answer(found, result.problems, jobs=result.jobs)
    if known is not None:
        answer.problems = [*result.problems, *known.problems]
        answer.healthy = known.verdict if baseline is not None else ""
    if found.primary is None:
        return answer
    with ExitStack() as opened:
        # The file of the primary finding can be inside an uploaded archive.
        holding = [name for name in task.names if found.primary.file.startswith(name)]
        streams = [(name, opened.enter_context(Path(name).open("rb"))) for name in holding]
        answer.context = context.lines_around(
            streams, found.primary.file, found.primary.line, limits=task.limits
        )
    return answer


def _report(what: object) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(what) + b"\n")
    sys.stdout.buffer.flush()
