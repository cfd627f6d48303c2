"""Agents of one run recognize each other by the variables of scheduler and launcher, and no others."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stallwatch_exporter.cluster.identity import RunIdentity, identify, with_ranks
from stallwatch_exporter.settings import JoinSettings
from stallwatch_exporter.stacks.local_ranks import rank_environ

# environments as captured in real programs, in full except the last one
ENVIRONMENTS = Path(__file__).parent / "environments"
AUTO = JoinSettings()
SCRIPT = ["python", "train.py"]
STATIC = "torchrun --nnodes 2 --master-addr n1 --master-port 29500 train.py"
C10D = "torchrun --nnodes=2 --rdzv-backend=c10d --rdzv_id=4711 --rdzv-endpoint=n1:29400 train.py"
PYTORCHJOB = {  # training-operator 1.7, pkg/controller.v1/pytorch/envvar.go
    "KUBERNETES_SERVICE_HOST": "10.0.0.1",
    "POD_NAMESPACE": "team",
    "MASTER_ADDR": "llama-master-0",
    "MASTER_PORT": "23456",
    "WORLD_SIZE": "16",
    "RANK": "3",
    "PET_MASTER_ADDR": "llama-master-0",
    "PET_MASTER_PORT": "23456",
    "PET_NNODES": "4",
    "PET_NODE_RANK": "3",
    "PET_NPROC_PER_NODE": "4",
}
JOBSET = {  # kubernetes-sigs/jobset, examples/pytorch/cnn-mnist/mnist.yaml
    "KUBERNETES_SERVICE_HOST": "10.0.0.1",
    "POD_NAMESPACE": "team",
    "MASTER_ADDR": "pytorch-workers-0-0.pytorch",
    "MASTER_PORT": "3389",
    "JOB_COMPLETION_INDEX": "2",
    "RANK": "2",
}


def environment(name: str) -> dict[str, str]:
    lines = (ENVIRONMENTS / f"{name}.env").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines)


def identified(
    environ: dict[str, str] | str,
    command: str = "python train.py",
    join: JoinSettings = AUTO,
    host: str = "n1",
    name: str = "train",
) -> RunIdentity:
    environ = environment(environ) if isinstance(environ, str) else environ
    found = identify(environ, command.split(), join, host, name=name)
    assert found is not None
    return found


def is_alone(environ: dict[str, str] | str, command: str = "python train.py") -> bool:
    environ = environment(environ) if isinstance(environ, str) else environ
    return identify(environ, command.split(), AUTO, "n1", name="train") is None


@pytest.mark.parametrize(
    ("environ", "command", "label", "master", "node", "agents"),
    [
        ("srun-n1-task0", "python train.py", "train-1.0", "n1", 0, 6),
        ("srun-n3-task5", "torchrun --standalone train.py", "train-1.0", "n1", 2, 6),
        ("sbatch-step1-n2", "python train.py", "train-4.1", "n1", 1, 2),
        ("array-task4-n2", "python train.py", "train-5_4.0", "n1", 1, 2),
        ("het-step-n3", "python train.py", "train-7.0", "n1", 2, 3),
        ("requeue-start1-n1", "python train.py", "train-9.0-r1", "n1", 0, 2),
        (PYTORCHJOB, "torchrun train.py", "train-llama", "llama-master-0", 3, 4),
        (JOBSET, "torchrun --nnodes=4 train.py", "train-pytorch", "pytorch-workers-0-0.pytorch", 2, 4),
        (
            {**JOBSET, "JOBSET_NAME": "sft", "JOBSET_RESTART_ATTEMPT": "2"},
            "python train.py",
            "train-sft-r2",
            "pytorch-workers-0-0.pytorch",
            2,
            None,
        ),
        ({}, STATIC, "train-n1-29500", "n1", None, 2),
        ({}, STATIC.replace("--nnodes 2", "--nnodes 2 --node_rank 1"), "train-n1-29500", "n1", 1, 2),
        ({}, f"env A=b python3 -u -m torch.distributed.run {C10D[9:]}", "train-4711", "n1", None, 2),
        ({}, C10D.replace("nnodes=2", "nnodes=1:4"), "train-4711", "n1", None, None),
        (
            {},
            "accelerate launch --num_machines 2 --machine_rank 1 --main_process_ip 10.0.0.1"
            " --main_process_port 29500 train.py --num_machines 1",
            "train-10.0.0.1-29500",
            "10.0.0.1",
            1,
            2,
        ),
        (
            {},
            "deepspeed --no_ssh --node_rank 0 --master_addr n1 --master_port 29500 train.py",
            "train-n1-29500",
            "n1",
            0,
            None,
        ),
        (
            {"NNODES": "2", "NODE_RANK": "1", "MASTER_ADDR": "n1", "MASTER_PORT": "29500"},
            "swift sft",
            "train-n1-29500",
            "n1",
            1,
            2,
        ),
        *(
            (
                {"WORLD_SIZE": "16", "RANK": "1", "MASTER_ADDR": address, "MASTER_PORT": "29500"},
                "python train.py",
                "train-fd00-2-29500",
                "fd00::2",
                1,
                16,
            )
            for address in ("fd00::2", "[FD00::2]")
        ),
    ],
)
def test_run_identity_comes_from_the_scheduler_or_the_command(
    environ: dict[str, str] | str,
    command: str,
    label: str,
    master: str,
    node: int | None,
    agents: int | None,
) -> None:
    found = identified(environ, command)
    assert (found.run_label("train"), found.master, found.node, found.agents) == (label, master, node, agents)


def test_each_call_of_mpirun_is_one_run() -> None:
    one, same, other = (identified(name) for name in ("mpirun-a-rank0", "mpirun-a-rank1", "mpirun-b-rank0"))
    assert one.key == same.key != other.key
    assert (one.origin, one.master, one.agents) == ("mpi", "192.0.2.2", 2)
    assert one.run_label("train") == same.run_label("train") != other.run_label("train")


def test_mpirun_in_a_slurm_allocation_is_one_run() -> None:
    rank, step = environment("mpirun-a-rank0"), environment("sbatch-step0-n2")
    here = identified({**environment("sbatch-script"), **rank})
    assert here.key == identified({**step, **rank}).key


def test_open_mpi_5_is_identified_by_its_own_variables() -> None:
    environ = {"OMPI_COMM_WORLD_SIZE": "2", "PMIX_NAMESPACE": "prterun-n1-4711@1"}
    other = {**environ, "PMIX_NAMESPACE": "prterun-n1-4712@1"}
    assert identified(environ).key != identified(other).key


@pytest.mark.parametrize(
    "names",
    [
        ("srun-n1-task0", "srun-n1-task1", "srun-n2-task2", "srun-n3-task5"),
        ("het-step-n1", "het-step-n2", "het-step-n3"),
        ("requeue-start1-n1", "requeue-start1-n2"),
    ],
)
def test_all_tasks_of_a_step_are_one_run(names: tuple[str, ...]) -> None:
    found = [identified(name, host=environment(name)["SLURMD_NODENAME"]) for name in names]
    assert len({item.key for item in found}) == 1
    assert len({item.run_label("train") for item in found}) == 1


def test_jobs_steps_and_restarts_have_distinct_keys_and_labels() -> None:
    names = ["srun-n1-task0", "sbatch-step0-n1", "sbatch-step1-n1", "array-task4-n1", "array-task5-n1"]
    names += ["het-step-n1", "requeue-start0-n1", "requeue-start1-n1", "mpirun-a-rank0", "mpirun-b-rank0"]
    found = [identified(name) for name in names]
    found += [identified({}, STATIC), identified({}, STATIC.replace("29500", "29501"))]
    found += [identified({}, C10D), identified({}, C10D.replace("4711", "4712"))]
    found += [identified(PYTORCHJOB), identified(PYTORCHJOB | {"MASTER_ADDR": "b", "PET_MASTER_ADDR": "b"})]
    assert len({item.key for item in found}) == len(found)
    assert len({item.run_label("train") for item in found}) == len(found)


def test_equal_job_ids_in_two_clusters_or_namespaces_differ() -> None:
    step = environment("srun-n1-task0")
    assert identified(step).key != identified({**step, "SLURM_CLUSTER_NAME": "b"}).key
    assert identified(PYTORCHJOB).key != identified({**PYTORCHJOB, "POD_NAMESPACE": "other"}).key


def test_trials_in_one_step_are_separate_runs_if_their_names_differ() -> None:
    for environ in (environment("srun-n1-task0"), environment("mpirun-a-rank0"), PYTORCHJOB, JOBSET):
        command = "torchrun --nnodes 4 train.py"
        assert identified(environ, command, name="a").key != identified(environ, command, name="b").key


def test_number_of_a_host_is_its_position_in_the_step() -> None:
    step = {**environment("srun-n3-task5"), "SLURM_NODEID": ""}
    assert identified(step).node == 2
    del step["SLURMD_NODENAME"]
    assert [identified(step, host=host).node for host in ("n2.cluster", "elsewhere")] == [1, None]


@pytest.mark.parametrize(
    ("environ", "command"),
    [
        ({}, "python train.py"),
        ("srun-one-task", "torchrun --nproc-per-node 8 train.py"),
        ("sbatch-script", "torchrun --nproc-per-node 8 train.py"),
        ("sbatch-script", f"srun -N2 {C10D}"),
        ("sbatch-step0-n1", "srun --overlap -n1 python train.py"),
        ("torchrun-standalone-rank1", "python train.py"),
        ({}, "torchrun --nproc-per-node 8 train.py"),
        ({}, C10D.replace("--nnodes=2", "--nnodes=1")),
        ({}, C10D.replace("n1:", "localhost:")),
        ({}, C10D.replace("n1:", "127.0.1.1:")),
        ({}, C10D.replace("n1:", "[::1]:")),
        ({}, C10D.replace("n1:29400", "x/y")),
        ({}, f"{C10D.replace(' train.py', '')} --standalone train.py"),
        ({}, f"torchrun --standalone train.py {C10D}"),
        ({}, f"python train.py {C10D}"),
        ({}, "deepspeed --hostfile hosts --master_addr n1 --num_nodes 2 train.py"),
        ({}, "mpirun -n 16 --hostfile hosts python train.py"),
        ({"NNODES": "2", "MASTER_ADDR": "n1"}, "ssh n2 torchrun train.py"),
        ({**PYTORCHJOB, "PET_NNODES": "1"}, "torchrun train.py"),
        ({**PYTORCHJOB}, "torchrun --nnodes 1 train.py"),
        ({"OMPI_COMM_WORLD_SIZE": "1", "PMIX_NAMESPACE": "1"}, "python train.py"),
        ({"PMI_SIZE": "2", "PMI_RANK": "1"}, "python train.py"),  # MPICH
        ({"MASTER_ADDR": "n1", "MASTER_PORT": "29500"}, "python train.py"),
        ({"MASTER_ADDR": "n1", "MASTER_PORT": "29500", "NNODES": "0"}, "swift sft"),
    ],
)
def test_run_of_one_agent_has_no_identity(environ: dict[str, str] | str, command: str) -> None:
    assert is_alone(environ, command)


def test_rendezvous_without_an_id_is_provisional_until_ranks_report() -> None:
    command = C10D.replace("--rdzv_id=4711", "--rdzv_id=none")
    found = identified({}, command)
    assert found.provisional
    rank = {**environment("torchrun-static-rank0"), "MASTER_ADDR": "n1", "MASTER_PORT": "40929"}
    certain = with_ranks(found, rank)
    assert certain is not None and not certain.provisional
    assert certain.key != found.key and certain.run_label("x") == found.run_label("x")
    assert with_ranks(found, {**rank, "MASTER_PORT": "40930"}) != certain
    assert with_ranks(certain, {**rank, "MASTER_PORT": "40930"}) == certain  # restarted by torchrun
    assert with_ranks(found, environment("torchrun-standalone-rank1")) == found


def test_environment_of_ranks_identifies_a_run_started_by_a_script() -> None:
    first, last = (environment(f"torchrun-static-rank{rank}") for rank in (0, 3))
    one, other = with_ranks(None, first), with_ranks(None, last)
    assert one is not None and other is not None
    assert (one.key, one.origin, one.master, one.agents) == (other.key, "ranks", "vm", 2)
    assert (one.node, other.node) == (0, 1)
    certain = identified({}, STATIC)
    assert with_ranks(certain, first) is certain


def test_environment_of_a_rank_is_read_from_its_process() -> None:
    environ = environment("torchrun-static-rank3")
    pipe = subprocess.PIPE
    program = "print(flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", program], env=environ, stdin=pipe, stdout=pipe) as rank:
        assert rank.stdout is not None
        rank.stdout.readline()  # before the program runs, its environment may still be that of this process
        found = with_ranks(None, rank_environ(rank.pid))
        rank.communicate(b"\n")
    assert found == with_ranks(None, environ) is not None
    assert rank_environ(rank.pid) == {}


@pytest.mark.parametrize(
    "changes",
    [
        {"MASTER_ADDR": "localhost"},  # the host cannot determine its own name
        {"MASTER_PORT": ""},
        {"GROUP_WORLD_SIZE": "1"},
        {"GROUP_WORLD_SIZE": "", "WORLD_SIZE": "2"},
    ],
)
def test_ranks_of_a_single_host_identify_no_run_over_hosts(changes: dict[str, str]) -> None:
    assert with_ranks(None, {**environment("torchrun-static-rank0"), **changes}) is None


def test_ranks_of_deepspeed_provide_the_number_of_hosts() -> None:
    environ = {"MASTER_ADDR": "n1", "MASTER_PORT": "29500", "RANK": "8", "WORLD_SIZE": "16"}
    found = with_ranks(None, {**environ, "LOCAL_SIZE": "8", "CROSS_RANK": "1", "CROSS_SIZE": "2"})
    assert found is not None and (found.node, found.agents) == (1, 2)


def test_name_option_identifies_the_run_without_a_scheduler() -> None:
    join = JoinSettings(run="sft 7b", address="n1:19402")
    found = identified({}, join=join)
    assert (found.run_label("train"), found.master, found.origin) == ("sft-7b", "n1:19402", "flags")
    other = identified({}, "bash other.sh", join, "n2", "other")
    assert (other.key, other.run_label("other")) == (found.key, "sft-7b")


def test_run_option_keeps_facts_of_the_scheduler() -> None:
    join = JoinSettings(run="sft")
    first, again = (identified(f"requeue-start{start}-n2", join=join, host="n2") for start in (0, 1))
    assert (again.hosts, again.node, again.agents) == (("n1", "n2"), 1, 2)
    assert again.run_label("train") == "sft-r1"
    assert first.key != again.key


def test_coordinator_address_alone_identifies_no_run() -> None:
    join = JoinSettings(address="coordinator:19402")
    assert identify({}, SCRIPT, join, "n1") is None
    assert identified("srun-n1-task0", join=join).master == "coordinator:19402"


def test_mode_off_disables_joining() -> None:
    off = JoinSettings(mode="off", run="sft")
    assert identify(environment("srun-n1-task0"), SCRIPT, off, "n1") is None


HOSTILE = ["../../etc", "a\nb\x1b[31m", "x" * (1 << 20), "训练", "\udcff", "'; drop", "1" * 5000, ""]


@pytest.mark.parametrize("value", HOSTILE)
def test_hostile_values_are_bounded_and_sanitized(value: str) -> None:
    environs = [
        {**environment("array-task4-n1"), name: value}
        for name in ("SLURM_JOB_ID", "SLURM_ARRAY_TASK_ID", "SLURM_STEP_NODELIST", "SLURM_RESTART_COUNT")
    ]
    environs += [{**PYTORCHJOB, name: value} for name in ("PET_RDZV_ID", "POD_NAMESPACE", "PET_MASTER_ADDR")]
    environs += [{**JOBSET, "JOBSET_NAME": value}, {**environment("mpirun-a-rank0"), "PMIX_NAMESPACE": value}]
    for environ in environs:
        for join in (AUTO, JoinSettings(run=value, address=value)):
            found = identify(environ, [*C10D.split()[:-1], value], join, value, name=value)
            if found is not None:
                shown = (found.key, found.job, found.run_label(value), found.master, *found.hosts)
                assert all(len(text) <= 300 and text.isprintable() and "/" not in text for text in shown)
                assert len(found.run_label(value)) <= 100


def test_truncated_labels_of_different_jobs_differ() -> None:
    labels = {
        identified({}, C10D.replace("4711", f"{'x' * 200}{end}")).run_label("n" * 200) for end in ("1", "2")
    }
    assert len(labels) == 2


@given(
    st.dictionaries(
        st.sampled_from([*PYTORCHJOB, *JOBSET, "SLURM_JOB_ID", "SLURM_STEP_ID", "OMPI_COMM_WORLD_SIZE", "X"]),
        st.text(max_size=12) | st.sampled_from(["2", "n1", "1:", ":4", "[", "0"]),
    ),
    st.lists(st.text(max_size=8) | st.sampled_from([*C10D.split(), "-m", "--", "--nnodes", "x.py", "="])),
)
def test_no_environment_raises_an_error(environ: dict[str, str], command: list[str]) -> None:
    found = identify(environ, command, AUTO, "n1")
    with_ranks(found, environ)
    assert found is None or (len(found.key) == 16 and found.job)
