"""Launchers' summaries: which rank failed, where its own lines do not say so."""

from __future__ import annotations

import pytest

from stallwatch_rules.failures.launchers import LauncherSummary
from stallwatch_rules.lines.reader import LineReader
from stallwatch_rules.pages.catalogue import Catalogue
from stallwatch_rules.reading import RunReading
from stallwatch_rules.records import Diagnosis, Line

OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
TORCHRUN = """\
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
train.py FAILED
Root Cause (first observed failure):
[0]:
  time      : 2026-05-02_09:00:00
  host      : node1
  rank      : 5 (local_rank: 5)
  exitcode  : 1 (pid: 71)
============================================================
"""
MPIRUN_CODE = """\
--------------------------------------------------------------------------
mpirun detected that one or more processes exited with non-zero status, thus causing
the job to be terminated. The first process to do so was:

  Process name: [[5021,1],3]
  Exit code:    1
--------------------------------------------------------------------------
"""
MPIRUN_SIGNAL = (
    "mpirun noticed that process rank 2 with PID 0 on node node1 exited on signal 11 (Segmentation fault).\n"
)


def read(text: str) -> LauncherSummary:
    summary = LauncherSummary()
    for line in text.splitlines():
        summary.see(Line(line, "train.log", 1))
    return summary


def diagnose(catalogue: Catalogue, text: str) -> Diagnosis:
    reading = RunReading(catalogue)
    reading.feed(LineReader("train.log").feed(text.encode()))
    return reading.diagnose()


@pytest.mark.parametrize(("text", "rank"), [(TORCHRUN, 5), (MPIRUN_CODE, 3), (MPIRUN_SIGNAL, 2)])
def test_the_rank_that_failed(text: str, rank: int) -> None:
    summary = read(text)
    assert summary.culprits == [rank]
    assert summary.failed_by_itself


@pytest.mark.parametrize(("text", "rank"), [(TORCHRUN, 5), (MPIRUN_CODE, 3)])
def test_a_cause_without_a_rank_is_that_of_the_rank_that_failed(
    catalogue: Catalogue, text: str, rank: int
) -> None:
    primary = diagnose(catalogue, OOM + text).primary
    assert primary is not None
    assert (primary.rule, primary.rank) == ("cuda-oom", rank)


def test_the_launchers_summary_itself_names_the_rank(catalogue: Catalogue) -> None:
    primary = diagnose(catalogue, TORCHRUN).primary
    assert primary is not None
    assert (primary.role, primary.rank) == ("wrapper", 5)


def test_of_several_none_is_blamed(catalogue: Catalogue) -> None:
    two = TORCHRUN.replace(
        "Root Cause", "[1]:\n  rank      : 2 (local_rank: 2)\n  exitcode  : 1 (pid: 70)\nRoot Cause"
    )
    primary = diagnose(catalogue, OOM + two).primary
    assert primary is not None
    assert primary.rank is None
