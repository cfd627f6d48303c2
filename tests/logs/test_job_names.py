"""Files of different jobs, recognized by their names, only if the names are certain."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from stallwatch_logs.jobs import OTHER, by_job

# Each line: names of files, and the job of each file, in the same order.
APART = [
    ("slurm-1001.out slurm-1002.out slurm-1003.out", "1001 1002 1003"),
    ("logs/slurm-1001.out logs/slurm-1001.err logs/slurm-1002.out", "1001 1001 1002"),
    ("slurm-1001_0.out slurm-1001_1.out slurm-1002_0.out", "1001 1001 1002"),  # %A_%a: tasks of an array
    ("slurm-1001-0.out slurm-1001-1.out slurm-1002-0.out", "1001 1001 1002"),  # %j-%t
    ("slurm-1001-node07.out slurm-1001-node08.out slurm-1002-node07.out", "1001 1001 1002"),  # %j-%N
    ("slurm-1001.0.out slurm-1001.1.out slurm-1002.0.out", "1001 1001 1002"),  # %J: job and step
    ("a/slurm-1001.out b/slurm-1002.out", "1001 1002"),
    ("slurm-1001.out.gz slurm-1001.out.1 slurm-1002.out", "1001 1001 1002"),
    ("slurm-20251120.out slurm-20251121.out", "20251120 20251121"),
    ("job-1001.log job_1002.log train.job1003.txt", "1001 1002 1003"),
    ("logs/job_1001/rank0.log logs/job_1001/rank1.log logs/job_1002/rank0.log", "1001 1001 1002"),
    ("sft-1001.out sft-1001.err sft-1002.out", "1001 1001 1002"),  # %x-%j
    ("sft-7b-123456.out sft-7b-123507.out", "123456 123507"),
    ("sft-1001_0.out sft-1001_1.out sft-1002_0.out", "1001 1001 1002"),
    ("sft-1001-task3.out sft-1002-task3.out", "1001 1002"),
    ("sft_1001.out sft_1002.err", "1001 1002"),
    ("train_123456.log train_123957.log", "123456 123957"),
    # the third job was started alone
    ("train_123456.log train_123457.log train_129001.log", "123456 123457 129001"),
    ("train_12345678.log train_12345679.log", "12345678 12345679"),  # no process id has this size
    ("train-12345678.log train-12345679.log", "12345678 12345679"),
    (
        "train_1001.log train_1001.err train_1002.log train_1009.log train_1020.log",
        "1001 1001 1002 1009 1020",
    ),
    ("sft.1001.out sft.1002.out", "1001 1002"),  # %x.%j; LSF: name.%J.out
    ("sft.1001.out sft.1001[3].out sft.1002.out", "1001 1001 1002"),
    ("9998.out 9998.err 10003.out", "9998 9998 10003"),
    ("sft-1001.out sft-1002.out dpo-1003.out", "1001 1002 1003"),  # the first two files show a scheduler
    ("sft.o1001 sft.e1001 dpo.o1002 dpo.o1002.4", "1001 1001 1002 1002"),  # PBS, SGE
    ("1001_0_log.out 1001_1_log.out 1001_0_log.err 1002_0_log.out", "1001 1001 1001 1002"),  # submitit
    ("l/a1_abcdefgh/attempt_0/0/stderr.log l/b2_h_gfedcb/attempt_0/0/stderr.log", "a1 b2"),
    (
        "l/a1_abcdefgh/attempt_0/0/stderr.log l/a1_abcdefgh/attempt_1/0/stderr.log"
        " l/a1_zyxwvuts/attempt_0/1/stdout.log l/b2_abcdefgh/attempt_0/0/stderr.log",
        "a1 a1 a1 b2",
    ),
    ("sft-master-0.log sft-worker-0.log dpo-worker-0.log dpo-worker-1.log", "sft sft dpo dpo"),
    ("sft-launcher-0 sft-worker-0_ns_main-4f2a.log kto-worker-0.log", "sft sft kto"),
    ("x.zip!slurm-1001.out x.zip!logs/slurm-1002.out", "1001 1002"),
    # known from the other files
    ("slurm-1001.out slurm-1002.out nccl.1001.node3.log 1002/rank0.log", "1001 1002 1001 1002"),
    ("a/slurm-1001.out a/ranks/rank0.log b/slurm-1002.out b/rank0.log", "1001 1001 1002 1002"),
    ("slurm-1001.out slurm-1002.out rank0.log rank1.log", f"1001 1002 {OTHER} {OTHER}"),
    ("slurm-1001.out slurm-1002.out rank-1001.log", f"1001 1002 {OTHER}"),
]

TOGETHER = [
    "rank0.log rank1.log rank10.log",
    "rank-1001.log rank-1002.log rank_1003.out",
    "node-1.log node-2.log",
    "node-1001.log node-1002.log",
    "node01-1001.out node02-1002.out",  # %N-%j of two nodes: either number may be the job
    "node07-45012.out node07-45013.out",  # host and process id
    "gpu-12-45012.out gpu-12-45013.out",
    "worker-3 worker-4",
    "worker-0.log worker-1.log",
    "worker_1001.log worker_1002.log",
    "workerlog.1001 workerlog.1002",
    "log_0 log_1",
    "log_1000 log_1001",
    "0.out 1.out",
    "1.out 1000.out 1001.out",  # 1,001 ranks
    "train-999.out train-1000.out train-1001.out",
    "train-0001.out train-0002.out",
    "train.log train.log.1 train.log.2",
    "train.log.2026-11-20 train.log.2026-11-21",
    "train-2024.out train-2025.out",
    "train-20261120.out train-20261121.out",
    "train-2026-11-20-1001.out train-2026-11-20-1002.out",
    "train_20261120_101500.log train_20261120_101501.log",
    "train-261120.out train-261121.out",
    "train-1700000000.out train-1700000003.out",
    "train-1120101530.out train-1120101531.out",
    "port-29501.out port-29502.out",
    "vllm-8001.out vllm-8002.out",
    "hgx-1001.out hgx-1002.out",
    "h100-1001.out h100-1002.out",
    "dgx-a100-1001.out dgx-a100-1002.out",
    "v5p-1001.out v5p-1002.out",
    "k8s-1001.out k8s-1002.out",
    "ip-10-0-1001.out ip-10-0-1002.out",
    "master-1001.out master-1002.out",
    "rdzv_1001.out rdzv_1002.out",
    "train-29500.out train-29501.out",  # the port of each rank, in sequence
    "train-29501.out train-29502.out",
    "out_12355.err out_12356.err",
    "train-10000.out train-10001.out train-10002.out train-10003.out",
    "train-1001.out train-12345678.out",
    "step-1001.out step-1002.out",
    "eval-1000.out eval-2000.out",
    "checkpoint_5001.log checkpoint_5002.log",
    "seed-1234.out seed-4321.out",
    "nccl_45012.log nccl_45013.log",
    "nccl.node1.45012 nccl.node1.45013",
    "python_45012.log python_45013.log",
    "train-pid45012.log train-pid45013.log",
    "train_pid_45012.log train_pid_45013.log",
    "train_45012.log train_45013.log train_45015.log train_45016.log",  # processes of one launch
    "train_45012.log train_45013.log",
    # threads were numbered between the processes
    "train_45012.log train_45078.log train_45144.log train_45210.log",
    "train_45012.log train_45013.log train_88100.log train_88101.log",  # processes of two nodes
    "debug_hpc01_45012.log debug_hpc01_45099.log",
    "stdout_1001.log stderr_1001.log stdout_1002.log",
    "pystack-45012.out pystack-45013.out",
    "memory_45012.err memory_45990.err",
    "train-45012.log train-45013.log",
    "45012.log 45013.log",
    "plog-45012_20261120.log plog-45013_20261120.log",
    "worker-01000000-ffffffff-45012.out worker-01000000-ffffffff-45013.out",  # Ray
    "rank0-45012.out rank0-45099.out rank1-45013.out",
    "n0/train-1001.out n1/train-1002.out",  # a folder for each node
    "sft-1001.out dpo-1002.out",
    "sft-1001.out sft-1001.err sft-1001_1.out",
    "slurm-1001.out rank0.log rank1.log",
    "slurm-1001_0.out slurm-1001_1.out slurm-1001-node2.out",
    "slurm-0.out slurm-1.out slurm-17.out",
    "logs/1001/rank0.log logs/1002/rank0.log",
    "global_step_1000/train.log global_step_2000/train.log",
    "run1/ranks/rank0.log run2/ranks/rank0.log",
    # torchrun makes a folder on each node for the same id
    "l/none_abcdefgh/attempt_0/0/stderr.log l/none_zyxwvuts/attempt_0/0/stderr.log",
    "n0/a1_abcdefgh/attempt_0/0/stderr.log n1/b2_abcdefgh/attempt_0/0/stderr.log",
    "l/a1_abcdefgh/attempt_0/0/stderr.log l/a1_abcdefgh/attempt_1/0/stderr.log",
    "l/node0_abcdefgh/attempt_0/0/stderr.log l/node1_abcdefgh/attempt_0/0/stderr.log",  # a static rendezvous
    "sft-worker-0.log sft-worker-1.log sft-master-0.log sft-launcher-0.log",
    "actor-worker-0.log critic-worker-0.log",
    "ppo-actor-worker-0.log ppo-critic-worker-0.log",
    "sft1-worker-0.log sft2-worker-0.log",
    "group-a-worker-0.log group-b-worker-0.log",
    "sft-worker-0.log sft-eval-worker-0.log",
    "prefill-worker-0.log decode-worker-0.log",
    "agent-worker-0.log tool-worker-0.log",
    "east-worker-0.log west-worker-0.log",
    "grpo-large-worker-0.log grpo-small-worker-0.log",
    "sft-worker-1.log dpo-worker-1.log",  # neither job has a file of its first rank
    "<stdin> slurm-1001.out",
    "job_1700000000123_0001.log job_1700000000123_0002.log",
    "x.o2 x.o3",
    "",
]


@pytest.mark.parametrize(("names", "jobs"), APART)
def test_job_numbers_in_names_separate_jobs(names: str, jobs: str) -> None:
    expected: dict[str, list[str]] = {}
    for name, job in zip(names.split(), jobs.split(), strict=True):
        expected.setdefault(job, []).append(name)
    assert by_job(names.split()) == expected


@pytest.mark.parametrize("names", TOGETHER)
def test_ambiguous_names_do_not_separate_jobs(names: str) -> None:
    assert by_job(names.split()) == {}


def test_known_owners_of_files_separate_jobs() -> None:
    owned = {"runs/a/output.log": "a", "runs/b/output.log": "b", "runs/b/ranks/rank0.log": "b"}
    assert by_job([*owned, "x.log"], owned) == {
        "a": ["runs/a/output.log"],
        "b": ["runs/b/output.log", "runs/b/ranks/rank0.log"],
        OTHER: ["x.log"],
    }
    assert by_job(["runs/a/output.log", "x.log"], {"runs/a/output.log": "a"}) == {}
    owned = {"other/output.log": OTHER, "b/output.log": "b"}
    assert list(by_job([*owned, "x.log"], owned)) == [OTHER, "b", f"{OTHER}-files"]


def test_contents_decide_if_names_are_ambiguous() -> None:
    asked: list[dict[str, str]] = []

    def one_training(job_of: Mapping[str, str]) -> bool:
        asked.append(dict(job_of))
        return True

    assert by_job(["sft-1001.out", "sft-1002.out"], None, one_training) == {}
    assert by_job(["sft-master-0.log", "dpo-master-0.log"], None, one_training) == {}
    assert asked == [
        {"sft-1001.out": "1001", "sft-1002.out": "1002"},
        {"sft-master-0.log": "sft", "dpo-master-0.log": "dpo"},
    ]
    sure = ["slurm-1001.out", "slurm-1002.out"]
    assert list(by_job(sure, None, one_training)) == ["1001", "1002"] and len(asked) == 2


RANKS = """
    rank{n}.log rank_{n}.out rank-{n}.err {j}_rank{n}.log worker-{n} worker-{n}.log worker_{n}.log log_{n}
    log_{n:04} node-{n}.log node{n:02}.out gpu{n}.txt logs/{n}/stdout.log ranks/rank{n}.log {n}.log {n:03}.out
    train.log.{n} x_abcdefgh/attempt_0/{n}/stderr.log sft-worker-{n}.log sft-worker-{n}_ns_main.log
    slurm-{j}-{n}.out slurm-{j}_{n}.out slurm-{j}-node{n}.out {j}_{n}_log.out sft.o{j}.{n} sft-{j}-task{n}.err
    rank-{n}-{j}.log device_{n}/train.log node{n}/rank{n}.log host-{n}-{j}.out
"""
RANK = st.sampled_from(RANKS.split())


@given(
    st.lists(RANK, min_size=1, max_size=3),
    st.sets(st.integers(0, 5000), min_size=2, max_size=12),
    st.integers(1000, 99_999_999),
)
def test_ranks_of_one_job_are_not_split(forms: list[str], ranks: set[int], job: int) -> None:
    assume(min(ranks) < 1000)  # "1000.out" and "1002.out" can be the logs of two jobs
    names = list(dict.fromkeys(form.format(n=rank, j=job) for form in forms for rank in sorted(ranks)))
    assert by_job(names) == {}


@given(st.lists(RANK, min_size=1, max_size=3), st.sets(st.integers(0, 999), min_size=1, max_size=8))
def test_ranks_of_a_third_job_stay_together(forms: list[str], ranks: set[int]) -> None:
    names = [form.format(n=rank, j=7003) for form in forms for rank in sorted(ranks)]
    jobs = by_job(["slurm-7001.out", "slurm-7002.out", *dict.fromkeys(names)])
    found = {job for job, files in jobs.items() if set(files) & set(names)}
    assert found <= {"7003", OTHER}


MIXED = "slurm-1001.out slurm-1002.out sft-7001.out sft-7002.err a.log 7002.txt"


@given(st.permutations(MIXED.split()))
def test_order_of_names_is_irrelevant(names: list[str]) -> None:
    found = {name: job for job, files in by_job(names).items() for name in files}
    assert found == {
        "slurm-1001.out": "1001",
        "slurm-1002.out": "1002",
        "sft-7001.out": "7001",
        "sft-7002.err": "7002",
        "a.log": OTHER,
        "7002.txt": "7002",
    }
