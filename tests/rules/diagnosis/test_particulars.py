"""Details in the log about a cause whose page can only show how to find them."""

from __future__ import annotations

import pytest
from smallruns import primary, steps

from stallwatch_rules.lines.reader import LineReader
from stallwatch_rules.locale import rendered
from stallwatch_rules.matching.matcher import Matcher
from stallwatch_rules.pages.catalogue import Catalogue
from stallwatch_rules.reading import RunReading
from stallwatch_rules.records import Diagnosis, Primary
from stallwatch_rules.report.phrases import where

TIMED_OUT = (
    "[E1120 10:20:00.{rank}00 ProcessGroupNCCL.cpp:632] [Rank {rank}] Watchdog caught collective operation"
    " timeout: WorkNCCL(SeqNum={work}, OpType={operation}, NumelIn=4, NumelOut=1, Timeout(ms)=600000) ran for"
    " 600009 milliseconds before timing out.\n"
)
DESCRIBED = """\
Name:         sft-worker-0
    State:          Terminated
      Reason:       OOMKilled
      Exit Code:    137
    Limits:
      memory:          64Gi
    Requests:
      memory:          32Gi
"""
SIDECAR = """\
    State:          {state}
    Limits:
      memory:  256Mi
    Requests:
      memory:  128Mi
"""
NODE = """\
Capacity:
  memory:             528Gi
Allocatable:
  memory:             520Gi
"""
ASKED = (
    "W1119 09:35:31.141000 1 torch/distributed/elastic/agent/server/api.py:739] Received Signals.SIGTERM"
    " death signal, shutting down workers\n"
)
SENT = (
    "W1119 09:35:31.142000 1 torch/distributed/elastic/multiprocessing/api.py:900] Sending process 77 closing"
    " signal SIGTERM\n"
)
CRASH = """\
Fatal Python error: Segmentation fault

Thread 0x00007f11 (most recent call first):
  File "/srv/loading.py", line 7 in wait
Current thread 0x00007f12 (most recent call first):
  File "/opt/conda/lib/python3.11/site-packages/torch/_ops.py", line 1158 in __call__
  File "/srv/ext/moe.py", line 61 in forward
  File "/srv/train.py", line 200 in <module>
"""
NODE_FAILED = """\
srun: error: Node failure on gpu-n07
srun: Job step aborted: Waiting up to 62 seconds for job step to finish.
 0: gpu-n06:401:991 [0] transport/net_ib.cc:2210 NCCL WARN NET/IB: Got completion from peer 10.4.0.7<47431>\
 with status=IBV_WC_RETRY_EXC_ERR(12) opcode=IBV_WC_SEND(0) len=0 vendor err 129 (Send)
 0: [rank0]: torch.distributed.DistBackendError: NCCL error in: /pytorch/torch/csrc/distributed/c10d/\
NCCLUtils.hpp:317, remote process exited or there was a network error, NCCL version 2.21.5
slurmstepd: error: *** STEP 99120.0 ON gpu-n06 CANCELLED AT 2026-11-20T15:40:12 DUE TO NODE FAILURE, SEE\
 SLURMCTLD LOG FOR DETAILS ***
"""


def diagnose(
    catalogue: Catalogue, matcher: Matcher, files: dict[str, str], language: str = "en"
) -> Diagnosis:
    reading = RunReading(catalogue, matcher)
    for name, text in files.items():
        reading.feed(LineReader(name).feed(text.encode()))
    return rendered(reading.diagnose(), language)


def first(found: Diagnosis) -> Primary:
    assert found.primary is not None
    return found.primary


def waiting(works: dict[int, tuple[int, str]], group: str = "") -> dict[str, str]:
    found = TIMED_OUT.replace(
        "[Rank {rank}]", "[PG ID 1 PG GUID " + group + "(x) Rank {rank}]" if group else "[Rank {rank}]"
    )
    return {
        f"rank{rank}.log": steps(1, 20) + found.format(rank=rank, work=work, operation=operation)
        for rank, (work, operation) in works.items()
    }


@pytest.mark.parametrize(
    ("works", "odd", "expected"),
    [
        (
            {0: (51, "REDUCE_SCATTER"), 1: (51, "REDUCE_SCATTER"), 2: (50, "ALLREDUCE")},
            2,
            "rank 2: ALLREDUCE #50",
        ),
        ({0: (51, "REDUCE_SCATTER"), 1: (50, "ALLREDUCE")}, 1, "rank 1: ALLREDUCE #50"),  # the one behind
    ],
)
def test_ranks_in_another_collective_are_named(
    catalogue: Catalogue, matcher: Matcher, works: dict[int, tuple[int, str]], odd: int, expected: str
) -> None:
    found = diagnose(catalogue, matcher, waiting(works))
    one = first(found)
    assert one.rule == "nccl-collective-timeout" and one.title.endswith(f": rank {odd}")
    assert (one.rank, one.file) == (odd, f"rank{odd}.log")
    assert expected in one.fixes[0] and any(expected in note for note in found.notes)
    assert f"OpType={works[odd][1]}" in one.evidence[0]


def test_abort_of_the_watchdog_is_not_another_failure(catalogue: Catalogue, matcher: Matcher) -> None:
    """In a log of several ranks, the message of the abort can belong to another rank."""
    abort = "terminate called after throwing an instance of 'c10::DistBackendError'\n  what():  "
    lost = [
        TIMED_OUT.format(rank=rank, work=51, operation="ALLREDUCE").replace("[E1120", f"[rank{rank}]:[E1120")
        + abort
        + TIMED_OUT.format(rank=rank, work=51, operation="ALLREDUCE").partition("] ")[2]
        for rank in range(2)
    ]
    found = diagnose(catalogue, matcher, {"node0.log": steps(1, 20) + "".join(lost)})
    assert first(found).rule == "nccl-collective-timeout" and first(found).confidence == 0.9
    assert not any("might be the cause" in note for note in found.notes)


THROWN = "terminate called after throwing an instance of 'std::runtime_error'\n"
MESSAGES = [
    "  what():  " + TIMED_OUT.partition("] ")[2].format(rank=r, work=9, operation="REDUCE") for r in (3, 0)
]


@pytest.mark.parametrize(
    "lines",
    [
        THROWN + MESSAGES[0],
        THROWN * 2 + "".join(MESSAGES),  # two processes write at the same time
        THROWN.removesuffix("'\n") + THROWN + "'\n" + "".join(MESSAGES),
    ],
    ids=["one", "in turns", "in one line"],
)
def test_thrown_timeout_is_not_another_failure(catalogue: Catalogue, matcher: Matcher, lines: str) -> None:
    """In torch 2.1 and earlier, the watchdog throws the timeout, and only the message names the rank."""
    found = diagnose(catalogue, matcher, {"node0.log": steps(1, 20) + lines})
    assert (first(found).rule, first(found).confidence) == ("nccl-collective-timeout", 0.9)
    assert found.unknown == [] and not any("might be the cause" in note for note in found.notes)


@pytest.mark.parametrize("order", ["TIMEOUT, OTHER", "OTHER, TIMEOUT"])
def test_other_exception_between_the_lines_of_a_thrown_timeout_is_the_cause(
    catalogue: Catalogue, matcher: Matcher, order: str
) -> None:
    other = "  what():  cannot open the index of shard 12\n"
    reasons = [MESSAGES[0] if name == "TIMEOUT" else other for name in order.split(", ")]
    lines = THROWN + THROWN.replace("std::runtime_error", "c10::Error") + "".join(reasons)
    found = diagnose(catalogue, matcher, {"node0.log": steps(1, 20) + lines})
    (unknown,) = found.unknown
    assert (found.verdict, unknown.message) == ("unknown-failure", "cannot open the index of shard 12")


@pytest.mark.parametrize("reason", ["", "  what():  cannot open the index of shard 12\n"])
def test_other_exception_beside_a_thrown_timeout_is_reported(
    catalogue: Catalogue, matcher: Matcher, reason: str
) -> None:
    lines = THROWN + MESSAGES[0] + THROWN + reason
    (unknown,) = diagnose(catalogue, matcher, {"node0.log": steps(1, 20) + lines}).unknown
    assert unknown.message == reason.partition("():  ")[2].strip()


@pytest.mark.parametrize("host", ["gpu-17", "10.0.0.13"])
def test_host_in_the_prefix_of_pdsh_is_named(catalogue: Catalogue, matcher: Matcher, host: str) -> None:
    killed = "[2026-11-20 08:21:41,212] [ERROR] [launch.py:341:sigkill_handler] ['/usr/bin/python'] exits"
    lines = [f"gpu-11: {{'loss': {2 - n / 50}}}" for n in range(25)]
    lines += [f"{host}: {killed} with return code = -9"]
    one = first(diagnose(catalogue, matcher, {"train.log": "\n".join(lines) + "\n"}))
    assert (one.rule, one.rank, one.host) == ("host-oom-sigkill", None, host)
    assert where(Diagnosis("failed", one), "en").startswith(f"{host} · train.log:26")


@pytest.mark.parametrize("most", [1, 3])
def test_different_collectives_with_one_number_are_a_mismatch(
    catalogue: Catalogue, matcher: Matcher, most: int
) -> None:
    works = {**dict.fromkeys(range(most), (50, "ALLREDUCE")), 3: (50, "ALLGATHER")}
    found = diagnose(catalogue, matcher, waiting(works, "7"))
    one = first(found)
    assert one.rule == "nccl-collective-mismatch" and "rank 3" not in one.title
    assert any("rank 3: ALLGATHER #50" in finding.note for finding in found.findings)
    assert ["OpType=ALLREDUCE" in one.evidence[0], "OpType=ALLGATHER" in one.evidence[1]] == [True, True]


@pytest.mark.parametrize(
    ("other", "group"),
    [("RECV", "7"), ("COALESCED", "7"), ("ALLGATHER", "")],
    ids=["pair", "pairs", "unnamed"],
)
def test_transfers_and_unnamed_groups_are_not_a_mismatch(
    catalogue: Catalogue, matcher: Matcher, other: str, group: str
) -> None:
    works = {0: (12, "ALLREDUCE" if not group else "SEND"), 1: (12, other)}
    found = diagnose(catalogue, matcher, waiting(works, group))
    assert [finding.rule for finding in found.findings] == ["nccl-collective-timeout"]


def test_ranks_behind_in_one_operation_are_not_a_mismatch(catalogue: Catalogue, matcher: Matcher) -> None:
    works = {0: (51, "ALLREDUCE"), 1: (51, "ALLREDUCE"), 2: (50, "ALLREDUCE")}
    one = first(diagnose(catalogue, matcher, waiting(works)))
    assert one.title == catalogue.pages[one.rule].title


def test_memory_limit_of_a_killed_container_is_reported(catalogue: Catalogue, matcher: Matcher) -> None:
    logs = {"pod.log": steps(1, 20) + "Killed\n", "describe.txt": DESCRIBED}
    one = first(diagnose(catalogue, matcher, logs))
    assert one.title == "The container used more host memory than its limit of 64Gi (OOMKilled)"
    assert "resources.limits.memory" in one.fixes[0] and one.captures["limit"] == "64Gi"


@pytest.mark.parametrize(
    ("before", "expected", "after"),
    [
        (SIDECAR.format(state="Running"), DESCRIBED, NODE),
        (NODE, DESCRIBED.replace("    State: ", "    Last State: "), SIDECAR.format(state="Terminated")),
    ],
)
def test_limit_belongs_to_the_killed_container(
    catalogue: Catalogue, matcher: Matcher, before: str, expected: str, after: str
) -> None:
    found = diagnose(catalogue, matcher, {"pod.log": steps(1, 20), "describe.txt": before + expected + after})
    assert first(found).captures["limit"] == "64Gi"


@pytest.mark.parametrize(
    "described",
    [
        DESCRIBED.partition("    Limits")[0],
        DESCRIBED.partition("    Limits")[0] + SIDECAR.format(state="Running"),
        DESCRIBED.replace("    Limits:\n      memory:          64Gi\n", "") + NODE,
        DESCRIBED + DESCRIBED.replace("64Gi", "32Gi"),  # one of two
    ],
)
def test_limit_of_an_uncertain_container_is_not_reported(
    catalogue: Catalogue, matcher: Matcher, described: str
) -> None:
    logs = {"pod.log": steps(1, 20) + "Killed\n", "describe.txt": described}
    one = first(diagnose(catalogue, matcher, logs, "zh"))
    assert one.title == "容器的主机内存超限，被内核杀掉（OOMKilled）" and "limit" not in one.captures


def test_launcher_that_received_a_signal_was_ended_from_outside(
    catalogue: Catalogue, matcher: Matcher
) -> None:
    one = first(diagnose(catalogue, matcher, {"pod.log": steps(1, 20) + ASKED + SENT}))
    assert one.rule == "secondary-sigterm-cascade"
    assert one.title == "An external process ended the job with SIGTERM"
    assert "kubectl describe pod" in one.fixes[0] and "sacct" in one.fixes[0]
    inside = first(diagnose(catalogue, matcher, {"pod.log": steps(1, 20) + SENT}))
    assert inside.title == catalogue.pages[one.rule].title


def test_frame_of_a_crash_is_reported(catalogue: Catalogue, matcher: Matcher) -> None:
    one = first(diagnose(catalogue, matcher, {"train.log": steps(1, 20) + CRASH}))
    assert one.rule == "process-segfault"
    assert "/srv/ext/moe.py:61 in forward" in one.fixes[0] and "/srv/ext/moe.py:61 in forward" in one.evidence
    assert not any("faulthandler" in fix for fix in one.fixes)
    bare = first(diagnose(catalogue, matcher, {"train.log": steps(1, 20) + CRASH.splitlines()[0] + "\n"}))
    assert "faulthandler" in bare.fixes[0]


def test_lost_node_explains_network_errors(catalogue: Catalogue, matcher: Matcher) -> None:
    found = diagnose(catalogue, matcher, {"slurm-7.out": steps(1, 20) + NODE_FAILED})
    assert primary(found) == "scheduler-node-failed"
    rules = [finding.rule for finding in found.findings]
    assert "infiniband-link-down" in rules and "slurm-cancelled" not in rules


def test_lines_with_the_reason_are_quoted(catalogue: Catalogue, matcher: Matcher) -> None:
    error = (
        "torch.distributed.DistBackendError: NCCL error in: /src/NCCLUtils.cpp:77, unhandled system error\n"
        "ncclSystemError: System call (e.g. socket, malloc) or external library call failed.\n"
    )
    warning = "node1:11:22 [4] misc/param.cc:19 NCCL WARN Cannot read the parameter\n"
    quoted = first(diagnose(catalogue, matcher, {"run.log": warning + error}))
    bare = first(diagnose(catalogue, matcher, {"run.log": error}))
    assert quoted.rule == bare.rule == "nccl-unhandled-system-error"
    assert quoted.evidence == [*bare.evidence, warning.rstrip()]
    assert "NCCL_DEBUG" not in quoted.fixes[0] and "NCCL_DEBUG=WARN" in bare.fixes[0]


@pytest.mark.parametrize(
    ("rank", "named"), [("24", True), ("unknown", False), ("local", False), ("4294967295", False)]
)
def test_remote_rank_of_the_message_is_checked_first(
    catalogue: Catalogue, matcher: Matcher, rank: str, named: bool
) -> None:
    own = "[ERROR] 2026-02-28-11:59:30 (PID:5120, Device:0, RankID:101) ERR00100 PTA call acl api failed.\n"
    message = (
        "EI0002: [PID: 5120] 2026-02-28-11:59:30.645.648 The wait execution of the Notify register times out."
        f" Reason: The Notify register has not received the Notify record from remote rank: [{rank}].\n"
    )
    one = first(diagnose(catalogue, matcher, {"run.log": own + message}))
    assert one.rule == "hccl-collective-timeout"
    assert ("Check remote rank 24 first" in str(one.fixes[0])) is named
    assert any("RankID:101" in line for line in one.evidence)
