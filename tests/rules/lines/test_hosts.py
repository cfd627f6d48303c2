"""The host of a log, by path and lines; and short lists of hosts with their ranks."""

from __future__ import annotations

import pytest

from stallwatch_rules.lines.hosts import host_in_line, hosts_of_paths, numbers_of
from stallwatch_rules.text.digest import fold_names, natural_order, ranks_on

LAYOUTS = {
    "a folder for each node": {"node-076/rank6.log": "node-076", "node-077/rank8.log": "node-077"},
    "host names of one family": {"/scratch/n2/rank_16.err": "n2", "/scratch/n10/rank_80.err": "n10"},
    "a name with a dash": {"gpu-a-17/out.log": "gpu-a-17", "gpu-a-18/out.log": "gpu-a-18"},
    "with its domain": {"n3.x.org/rank1.log": "n3.x.org", "n4.x.org/rank2.log": "n4.x.org"},
    "Slurm's %x-%j-%N.out": {"sft-1001-n3.out": "n3", "sft-1001-n4.out": "n4"},
    "a file for each node": {"out/node3.log": "node3", "out/node4.log": "node4"},
    "EC2": {"ip-10-0-0-1/rank0.log": "ip-10-0-0-1", "ip-10-0-0-2/rank8.log": "ip-10-0-0-2"},
    "in an archive": {"logs.zip!n1/rank0.log": "n1", "logs.zip!n2/rank8.log": "n2"},
    "folders of ranks in those of hosts": {"n1/rank0/stdout.log": "n1", "n2/rank8/stdout.log": "n2"},
}
NO_HOSTS = {
    "ranks": ["rank0/stdout.log", "rank1/stdout.log"],
    "attempts": ["attempt_0/0/stderr.log", "attempt_1/0/stderr.log"],
    "parts": ["part-000/rank1.log", "part-001/rank2.log"],
    "runs": ["run1/train.log", "run2/train.log"],
    "GPUs": ["gpu0/train.log", "gpu1/train.log"],
    "workers, which may be ranks": ["worker-0.log", "worker-1.log"],
    "one host": ["n1/rank0.log", "n1/rank1.log"],
    "versions": ["v1/train.log", "v2/train.log"],
}


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_host_is_read_from_a_path(layout: dict[str, str]) -> None:
    assert hosts_of_paths(layout) == layout


@pytest.mark.parametrize("names", NO_HOSTS.values(), ids=NO_HOSTS)
def test_other_numbered_names_are_not_hosts(names: list[str]) -> None:
    assert hosts_of_paths(names) == {}


def test_host_is_read_from_an_nccl_line() -> None:
    assert host_in_line("gpu-a-17:4711:4790 [3] NCCL INFO Bootstrap : Using eth0") == "gpu-a-17"
    assert host_in_line("train.py:88:12 [3] something else") == ""


def test_host_of_a_rank_without_a_log_is_inferred() -> None:
    order = numbers_of({f"node-{host + 1:02d}": range(host * 8, host * 8 + 8) for host in (0, 1, 2, 4)})
    assert order is not None
    assert order.host(27) == "node-04"


@pytest.mark.parametrize(
    "hosts",
    [
        {"n0": [0, 1], "n1": [2, 3]},  # with two hosts, the order may be a coincidence
        {"n0": [0, 3], "n1": [1, 4], "n2": [2, 5]},  # in turns
        {"n0": [0, 1], "n1": [4, 5], "n2": [2, 3]},
        {"left": [0, 1], "right": [2, 3], "middle": [4, 5]},
    ],
)
def test_no_host_is_inferred_without_a_unique_order(hosts: dict[str, list[int]]) -> None:
    assert numbers_of(hosts) is None


def test_consecutive_host_names_are_folded() -> None:
    assert fold_names(["n10", "n9", "n8", "n2", "n1", "left"]) == "left, n1, n2, n8–n10"
    assert fold_names(f"node-{number:03d}" for number in range(128)) == "node-000–node-127"
    assert fold_names(["r1n1", "r1n2", "r1n3", "r2n4"]) == "r1n1–r1n3, r2n4"
    assert sorted(["n10", "n9"], key=natural_order) == ["n9", "n10"]


def test_few_hosts_are_named_and_many_counted() -> None:
    from stallwatch_rules.locale import render

    hosts = {rank: f"n{rank // 8}" for rank in range(1024)}
    assert render(ranks_on([614], hosts)) == "rank 614 on n76"
    assert render(ranks_on(range(608, 624), hosts)) == "ranks 608–623 on n76, n77"
    assert render(ranks_on(range(8, 1024), hosts)) == "1,016 ranks on 127 hosts"
