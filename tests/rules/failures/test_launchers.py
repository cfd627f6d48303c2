"""Launchers' summaries name the rank that failed if its own lines do not."""

from __future__ import annotations

import pytest
from smallruns import FAILED, FINISHED

from stallwatch_rules.endings import ExitedRank
from stallwatch_rules.failures.launchers import LauncherSummary
from stallwatch_rules.lines.reader import LineReader
from stallwatch_rules.locale import rendered
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
    return rendered(reading.diagnose())


@pytest.mark.parametrize(("text", "rank"), [(TORCHRUN, 5), (MPIRUN_CODE, 3), (MPIRUN_SIGNAL, 2)])
def test_failed_rank_is_read_from_the_summary(text: str, rank: int) -> None:
    summary = read(text)
    assert summary.culprits == [rank]
    assert summary.failed_by_itself


@pytest.mark.parametrize(("text", "rank"), [(TORCHRUN, 5), (MPIRUN_CODE, 3)])
def test_cause_without_a_rank_gets_the_failed_rank(catalogue: Catalogue, text: str, rank: int) -> None:
    primary = diagnose(catalogue, OOM + text).primary
    assert primary is not None
    assert (primary.rule, primary.rank) == ("cuda-oom", rank)


def test_summary_names_the_rank(catalogue: Catalogue) -> None:
    primary = diagnose(catalogue, TORCHRUN).primary
    assert primary is not None
    assert (primary.role, primary.rank) == ("wrapper", 5)


def test_no_rank_is_blamed_if_several_failed(catalogue: Catalogue) -> None:
    two = TORCHRUN.replace(
        "Root Cause", "[1]:\n  rank      : 2 (local_rank: 2)\n  exitcode  : 1 (pid: 70)\nRoot Cause"
    )
    primary = diagnose(catalogue, OOM + two).primary
    assert primary is not None
    assert primary.rank is None


LEFT = """\
{nodes}[2026-05-11 08:00:00,100] [INFO] [launch.py:245:main] process 71 spawned with command: ['python', '--local_rank=0']
[2026-05-11 08:00:00,110] [INFO] [launch.py:245:main] process 72 spawned with command: ['python', '--local_rank=1']
step 40/90 loss 1.7
[2026-05-11 08:10:06,100] [INFO] [launch.py:285:main] Process 72 exits successfully.
[rank0]:[E511 08:40:06.1 ProcessGroupNCCL.cpp:632] [Rank 0] Watchdog caught collective operation timeout: \
WorkNCCL(SeqNum=412, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=1800000) ran for 1800016 milliseconds \
before timing out.
"""  # noqa: E501
NODES = "[2026-05-11 08:00:00,000] [INFO] [launch.py:158:main] nnodes={}, num_local_procs=2, node_rank={}\n"


@pytest.mark.parametrize(
    ("nodes", "who"),
    [
        (NODES.format(1, 0), "Rank 1"),
        (NODES.format(2, 1), "One of the processes"),
        ("", "One of the processes"),
    ],
)
def test_local_rank_of_deepspeed_is_global_only_on_one_node(
    catalogue: Catalogue, nodes: str, who: str
) -> None:
    found = diagnose(catalogue, LEFT.format(nodes=nodes))
    given = next(finding for finding in found.findings if finding.rule == "rank-left-early")
    assert given.note.startswith(f"{who} exited without an error")


@pytest.mark.parametrize(("code", "early"), [(1, False), (-15, True)])
def test_rank_with_a_reported_error_did_not_leave_early(catalogue: Catalogue, code: int, early: bool) -> None:
    """``raise SystemExit(1)`` is no exception to the rank's own hooks; a launcher ends one that stays."""
    reading = RunReading(catalogue)
    steps = "".join(f"[rank0]: step {step}/90 loss 1.7\n" for step in range(1, 41))
    text = steps + LEFT.splitlines()[-1] + "\n" + TORCHRUN.replace("exitcode  : 1", f"exitcode  : {code}")
    reading.feed(LineReader("train.log").feed(text.encode()))
    found = rendered(reading.diagnose(ending=FAILED, left=[ExitedRank(5, 40)]))
    assert ("rank-left-early" in {finding.rule for finding in found.findings}) is early


@pytest.mark.parametrize(
    ("label", "step", "expected"),
    [
        ("[default{rank}]:rank {rank} ", 29, "Rank 1 exited without an error at step 29, "),
        ("", None, "Rank 1 exited without an error, "),
    ],
)
def test_step_of_a_rank_is_read_from_the_log(
    catalogue: Catalogue, label: str, step: int | None, expected: str
) -> None:
    reading = RunReading(catalogue)
    lines = (f"{label.format(rank=rank)}step {n}/60 loss 1.7\n" for n in range(1, 30) for rank in (0, 1))
    reading.feed(LineReader("train.log").feed("".join(lines).encode()))
    found = rendered(reading.diagnose(stalled=True, left=[ExitedRank(1)]))
    assert found.primary is not None and (found.primary.rule, found.primary.step) == ("rank-left-early", step)
    assert found.findings[0].note.startswith(expected)
    before_any = rendered(RunReading(catalogue).diagnose(stalled=True, left=[ExitedRank(1)]))
    assert before_any.findings[0].note.startswith("Rank 1 exited without an error before any step was seen")


@pytest.mark.parametrize("language", ["en", "zh"])
def test_finished_run_reports_only_ranks_that_were_missing(catalogue: Catalogue, language: str) -> None:
    """The other ranks ended only shortly before the launcher's last rank."""
    left = [ExitedRank(0, 40, 0), ExitedRank(1, 40, 1), ExitedRank(2, 10, 30)]
    found = rendered(
        RunReading(catalogue).diagnose(ending=FINISHED, left=left),
        language,
    )
    assert found.primary is not None and (found.verdict, found.primary.rule) == (
        "degraded",
        "rank-left-early",
    )
    assert (found.primary.rank, found.primary.step) == (2, 10)
    (evidence,) = found.primary.evidence
    assert evidence.startswith("Rank 2 exited without an error at step 10. The other ranks ran 30 more")
    assert ("rank 2" in found.findings[0].note.lower()) and "0, 1" not in found.findings[0].note
