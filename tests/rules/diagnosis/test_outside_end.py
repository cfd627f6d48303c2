"""A run that hung silently until it was ended: its log shows the stall, not only the end."""

from __future__ import annotations

import pytest

from stallwatch_rules.lines.reader import LineReader
from stallwatch_rules.locale import rendered
from stallwatch_rules.matching.matcher import Matcher
from stallwatch_rules.pages.catalogue import Catalogue
from stallwatch_rules.reading import RunReading
from stallwatch_rules.records import Diagnosis

CANCELLED = "slurmstepd: error: *** JOB 88131 ON n1 CANCELLED AT 2026-03-14T{at} ***"
TIME_LIMIT = "slurmstepd: error: *** JOB 88131 ON n1 CANCELLED AT 2026-03-14T{at} DUE TO TIME LIMIT ***"
NODE_FAILED = "[2026-03-14 {at}] srun: error: Node failure on n1"
LOST = "slurmstepd: error: *** STEP 88131.0 ON n1 CANCELLED AT 2026-03-14T09:40:13 DUE TO NODE FAILURE ***"
TERMINATED = (
    "[2026-03-14 {at}] torch/distributed/elastic/agent/server/api.py:753] Received 15 death signal,"
    " shutting down workers"
)
SAVING = "[2026-03-14 02:20:40] [INFO] gathering 16-bit weights for out/ckpt-100"
STEPS = [
    f"[2026-03-14 02:{12 * n // 60:02d}:{12 * n % 60:02d}] {{'loss': {3 - n / 100}, 'step': {n}}}"
    for n in range(1, 101)
]


def read(known: Catalogue, matcher: Matcher, end: str, first: str = SAVING) -> Diagnosis:
    reading = RunReading(known, matcher)
    for rank in range(4):
        lines = [*STEPS, *([first] if rank == 0 else []), end]
        reading.feed(LineReader(f"rank{rank}.log", rank).feed("\n".join(lines).encode() + b"\n"))
    return rendered(reading.diagnose())


@pytest.mark.parametrize(
    ("end", "rule"),
    [
        (CANCELLED, "slurm-cancelled"),
        ("srun: Job step aborted: Waiting up to 32 seconds.\n" + CANCELLED, "slurm-cancelled"),
        (TIME_LIMIT, "slurm-time-limit"),
        (TERMINATED, "secondary-sigterm-cascade"),
    ],
)
def test_long_silence_before_the_end_is_the_cause(
    catalogue: Catalogue, matcher: Matcher, end: str, rule: str
) -> None:
    found = read(catalogue, matcher, end.format(at="09:40:12"))
    primary = found.primary
    assert primary is not None and primary.rule == "silent-hang-no-error"
    assert (primary.rank, primary.step, primary.time) == (0, 100, "2026-03-14T02:20:40.000")
    assert primary.evidence == [SAVING, STEPS[-1]]
    assert "No step had finished for 7 h 20 min" in found.findings[0].note
    (given,) = [finding for finding in found.findings if finding.rule == rule]
    assert given.role == "symptom" and "not the cause of the stall" in given.note


@pytest.mark.parametrize("end", [CANCELLED, TIME_LIMIT, TERMINATED])
def test_end_soon_after_steps_is_not_a_stall(catalogue: Catalogue, matcher: Matcher, end: str) -> None:
    primary = read(catalogue, matcher, end.format(at="02:20:47")).primary
    assert primary is not None and primary.rule != "silent-hang-no-error"


def test_other_time_zone_is_not_silence(catalogue: Catalogue, matcher: Matcher) -> None:
    primary = read(catalogue, matcher, CANCELLED.format(at="10:20:47")).primary
    assert primary is not None and primary.rule == "slurm-cancelled"


def test_output_shortly_before_the_end_does_not_hide_a_silence(
    catalogue: Catalogue, matcher: Matcher
) -> None:
    """The steps allow 36 s. Output at the end, 75 s after the last step, is no sign of life."""
    leaving = "[2026-03-14 02:21:15] [INFO] leaving\n" + TIME_LIMIT.format(at="02:21:30")
    primary = read(catalogue, matcher, leaving, first="").primary
    assert primary is not None and primary.rule == "silent-hang-no-error"


def test_failure_before_the_end_remains_the_cause(catalogue: Catalogue, matcher: Matcher) -> None:
    oom = "[2026-03-14 02:20:40] torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
    primary = read(catalogue, matcher, CANCELLED.format(at="09:40:12"), oom).primary
    assert primary is not None and primary.rule == "cuda-oom"


@pytest.mark.parametrize("after", ["", f"\n{LOST}\nsrun: Job step aborted: Waiting up to 32 seconds."])
def test_stall_before_a_lost_node_is_explained_by_it(
    catalogue: Catalogue, matcher: Matcher, after: str
) -> None:
    primary = read(catalogue, matcher, NODE_FAILED.format(at="09:40:12") + after).primary
    assert primary is not None and primary.rule == "scheduler-node-failed"


def test_restarted_program_had_not_hung(catalogue: Catalogue, matcher: Matcher) -> None:
    def verdict(last: str) -> str:
        head = "[2026-03-14 02:00:05] Arguments: Namespace(lr=0.1)"
        lines = [head, *STEPS, f"[2026-03-16 09:00:00] {last}"]
        reading = RunReading(catalogue, matcher)
        reading.feed(LineReader("train.log", None).feed("\n".join(lines).encode() + b"\n"))
        return reading.diagnose().verdict

    assert verdict("Arguments: Namespace(lr=0.1)") == "unfinished"
    assert verdict("Closing the writer") == "stalled"
