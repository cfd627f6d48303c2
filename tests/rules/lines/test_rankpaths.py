"""Ranks from file names."""

from __future__ import annotations

import pytest

from stallwatch_rules.lines.ranks import rank_of_path, ranks_of_tasks


@pytest.mark.parametrize(
    ("path", "rank"),
    [
        ("none_abc/attempt_0/3/stderr.log", 3),
        ("2026-11-20_rank3.log", 3),  # deepspeed --enable_each_rank_log
        ("nemo_log_globalrank-3_localrank-3.txt", 3),
        ("node1_rank3.log", 3),
        ("msrun_log/worker_3.log", 3),
        ("log/workerlog.3", 3),
        ("log/workerlog.n0.c3", 3),
        ("log/workerlog.n1.c3", None),  # the number of a local rank
        ("output/log.txt.rank3", 3),  # detectron2
        ("user_logs/std_log_process_03.txt", 3),
        ("out/1/rank.3/stdout", 3),
        ("device_3/train.log", 3),
        ("ascend/log/run/device-3/device-4711_20261120.log", 3),
        ("sft-1234567-task3.out", 3),
        ("slurm-123_4.out", None),  # an array's run
        ("slurm-123456.out", None),
        ("worker-3.log", None),  # a host
        ("worker-0123abcd-01000000-4711.out", None),  # Ray's worker
        ("ascend/log/run/plog/plog-4711_20261120.log", None),
        ("log_3.txt", None),
        ("sft-1234567-3.out", None),  # by itself not sure
    ],
)
def test_rank_is_read_from_file_names(path: str, rank: int | None) -> None:
    assert rank_of_path(path) == rank


def test_slurm_tasks_of_one_job_are_ranks() -> None:
    tasks = [f"logs/sft-1234567-{task}.{kind}" for task in range(4) for kind in ("out", "err")]
    assert ranks_of_tasks([*tasks, "logs/other.log"]) == {path: int(path[-5]) for path in tasks}


@pytest.mark.parametrize(
    "paths",
    [
        ["sft-1234567-0.out"],
        ["sft-1234567-1.out", "sft-1234567-2.out"],
        ["slurm-1234567_0.out", "slurm-1234567_1.out"],
        ["train-20261120-0.out", "train-20261120-1.out"],
        ["sft-1234567-0.log", "sft-1234567-1.log"],
    ],
    ids=["one", "no zero", "array", "date", "rotated"],
)
def test_ambiguous_file_names_have_no_rank(paths: list[str]) -> None:
    assert ranks_of_tasks(paths) == {}


@pytest.mark.parametrize(
    ("path", "rank"),
    [
        ("rank0.stdout.log", 0),
        ("logs/rank_3.log", 3),
        ("job_rank-12.err", 12),
        ("attempt_0/3/stderr.log", 3),
        ("x/local_rank1/out.log", 1),
        ("runs/demo/ranks/rank0.log", 0),
        ("all.zip!logs/rank3.log", 3),
        ("out/rank5/lora_rank16.log", 5),
        ("lora_rank8.log", None),
        ("node_rank2.log", None),
        ("crank3.log", None),
        ("3/stderr.log", None),
        ("train.log", None),
        ("", None),
    ],
)
def test_rank_of_path(path: str, rank: int | None) -> None:
    assert rank_of_path(path) == rank
