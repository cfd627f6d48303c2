"""A rank that crashed, beside peers that reported its loss earlier."""

from __future__ import annotations

import pytest
from smallruns import stamped

from stallwatch_rules.locale import rendered
from stallwatch_rules.matching.matcher import lines_of
from stallwatch_rules.pages.catalogue import Catalogue
from stallwatch_rules.reading import RunReading
from stallwatch_rules.records import Diagnosis

STEPS = [(2.0 * step, f"[rank0]: step {step}/60 loss {2 / step:.4f}") for step in range(1, 21)]
GLOO = "RuntimeError: [gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:46824."
NCCL = (
    "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely."
)
NCCL_RULE = "nccl-remote-process-exited"
TIMEOUT = (
    "[Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=412, OpType=ALLREDUCE, NumelIn=1,"
    " NumelOut=1, Timeout(ms)=600000) ran for 600016 milliseconds before timing out."
)
SIGNALS = {
    "process-segfault": (11, "SIGSEGV"),
    "process-sigabrt": (6, "SIGABRT"),
    "process-sigbus": (7, "SIGBUS"),
    "process-sigill": (4, "SIGILL"),
    "process-ended-by-signal": (10, "SIGUSR1"),
    "floating-point-exception-core-dump": (8, "SIGFPE"),
    "host-oom-sigkill": (9, "SIGKILL"),
}


def summary(rule: str, rank: int = 3, other: int = -15) -> list[tuple[float, str]]:
    """Return torchrun's summary, some seconds after the peers, about the first rank and another one."""
    number, name = SIGNALS[rule]
    lines = [
        f"torch/distributed/elastic/multiprocessing/api.py:869] failed (exitcode: -{number})"
        f" local_rank: {rank} (pid: 904) of binary: /opt/venv/bin/python",
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:",
        "Failures:",
        "  rank      : 0 (local_rank: 0)",
        f"  exitcode  : {other} (pid: 901)",
        "Root Cause (first observed failure):",
        f"  rank      : {rank} (local_rank: {rank})",
        f"  exitcode  : -{number} (pid: 904)",
        f"  traceback : Signal {number} ({name}) received by PID 904",
    ]
    return [(56.0, line) for line in lines]


def read(catalogue: Catalogue, lines: list[tuple[float, str]], *, times: bool = True) -> Diagnosis:
    reading = RunReading(catalogue)
    text = stamped(lines) if times else "".join(f"{line}\n" for _, line in lines)
    reading.feed(lines_of(text))
    return rendered(reading.diagnose())


@pytest.mark.parametrize("rule", SIGNALS)
@pytest.mark.parametrize("peer", [GLOO, NCCL])
@pytest.mark.parametrize(("other", "times"), [(-15, True), (1, True), (-15, False)])
def test_crash_causes_earlier_reports_of_peers(
    catalogue: Catalogue, rule: str, peer: str, other: int, times: bool
) -> None:
    lines = [*STEPS, (50.0, f"[rank0]: {peer}"), *summary(rule, other=other)]
    found = read(catalogue, lines, times=times)
    assert found.primary is not None and found.verdict == "failed"
    assert (found.primary.rule, found.primary.role, found.primary.rank) == (rule, "cause", 3)
    assert found.primary.confidence >= 0.7
    assert [
        finding.role for finding in found.findings if finding.rule in ("gloo-connection-closed", NCCL_RULE)
    ] == ["symptom"]


@pytest.mark.parametrize(
    ("rule", "who"),
    [("process-segfault", "[rank3]: "), ("process-sigabrt", "[rank3]: "), ("process-sigabrt", "")],
)
def test_crash_after_the_loss_of_a_peer_is_a_consequence(catalogue: Catalogue, rule: str, who: str) -> None:
    found = read(catalogue, [*STEPS, (50.0, who + NCCL), *summary(rule)])
    assert found.primary is not None and found.primary.rule == NCCL_RULE


@pytest.mark.parametrize("rule", ["process-segfault", "process-sigabrt"])
def test_earlier_failure_remains_the_cause(catalogue: Catalogue, rule: str) -> None:
    before = [(48.0, f"[rank0]: {TIMEOUT}"), (50.0, f"[rank1]: {NCCL}")]
    found = read(catalogue, [*STEPS, *before, *summary(rule)])
    assert found.primary is not None and found.primary.rule == "nccl-collective-timeout"


@pytest.mark.parametrize("rule", ["process-segfault", "process-sigbus"])
@pytest.mark.parametrize("times", [True, False])
def test_crash_after_an_exception_of_another_rank_is_a_consequence(
    catalogue: Catalogue, rule: str, times: bool
) -> None:
    lines = [
        "Traceback (most recent call last):",
        '  File "/app/train.py", line 9, in <module>',
        "KeyError: 'y'",
    ]
    error = [(50.0, f"[rank0]: {line}") for line in lines]
    found = read(catalogue, [*STEPS, *error, *summary(rule)], times=times)
    assert found.primary is None and found.verdict == "unknown-failure"
    assert [each.exception for each in found.unknown] == ["KeyError"]
    found = read(catalogue, [*STEPS, *summary(rule), *[(57.0, text) for _, text in error]], times=times)
    assert found.primary is not None and found.primary.rule == rule


def test_abort_with_its_own_reason_is_not_the_cause(catalogue: Catalogue) -> None:
    reason = (
        "[rank3]: terminate called after throwing an instance of 'std::runtime_error'\n"
        "[rank3]:   what():  the loader's queue was closed"
    )
    found = read(catalogue, [*STEPS, (49.0, reason), (50.0, f"[rank0]: {GLOO}"), *summary("process-sigabrt")])
    assert found.primary is None and "queue was closed" in found.unknown[0].message


def left_out(rank: int, ranks: int = 3) -> list[tuple[float, str]]:
    """Return a run that lost a rank with status 0, so that torchrun's list does not name it."""
    others = [each for each in range(ranks) if each != rank]
    lines = [
        (2.0 * step, f"[rank{each}]: step {step}/60 loss {2 / step:.4f}")
        for step in range(1, 21)
        for each in range(ranks)
    ]
    lines += [(50.0, f"[rank{each}]: {GLOO}") for each in others]
    lines += [
        (56.0, "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:"),
        (56.0, "Failures:"),
    ]
    for each in reversed(others):
        root = [(56.0, "Root Cause (first observed failure):")] if each == others[0] else []
        row = [
            (56.0, f"  rank      : {each} (local_rank: {each})"),
            (56.0, f"  exitcode  : 1 (pid: {900 + each})"),
        ]
        lines += [*root, *row]
    return lines


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_rank_that_exited_with_0_is_named(catalogue: Catalogue, rank: int) -> None:
    found = read(catalogue, left_out(rank))
    assert found.primary is not None
    assert (found.primary.rule, found.primary.rank, found.primary.step) == ("rank-left-early", rank, 20)
    assert f"Rank {rank} exited without an error at step 20" in found.findings[0].note


def test_ranks_without_a_launcher_summary_have_not_left(catalogue: Catalogue) -> None:
    lines = left_out(2)
    lines += [(40.0, "[rank3]: step 20/60 loss 0.1000")]  # on another node, like rank 2
    found = read(catalogue, sorted(lines, key=lambda line: line[0]))
    assert found.primary is not None and found.primary.rule == "gloo-connection-closed"
