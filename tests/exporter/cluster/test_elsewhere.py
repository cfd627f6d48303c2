"""Suggested commands for launchers that start ranks on other hosts themselves."""

from __future__ import annotations

import shlex

import pytest

from stallwatch_exporter.cluster.elsewhere import advice
from stallwatch_exporter.settings import JoinSettings

HOSTS = "# all\nn1 slots=8\nn2 slots=8\n"
FILES = {"hosts": HOSTS, "alone": "n1 slots=8\n", "machines": "n1:4\nn2:4\n"}
MODULE = "stallwatch.integrations.deepspeed"


def read(path: str) -> str:
    try:
        return FILES[path]
    except KeyError:
        raise FileNotFoundError(path) from None


def advised(command: str, environ: dict[str, str] | None = None, **given: object) -> str:
    join = JoinSettings(**given)  # type: ignore[arg-type]
    name = "sft" if "--name" in command else None
    line = advice(shlex.split(command), environ or {}, join, name=name, read=read)
    return line.partition("to watch all ranks: ")[2]


@pytest.mark.parametrize(
    ("command", "better"),
    [
        (
            "deepspeed --hostfile hosts --master_port 29501 train.py --deepspeed ds.json",
            f"deepspeed --hostfile hosts --master_port 29501 --module {MODULE} train.py --deepspeed ds.json",
        ),
        (
            "python -m deepspeed.launcher.runner -H hosts --no_local_rank --module pkg.train -x",
            f"python -m deepspeed.launcher.runner -H hosts --no_local_rank --module {MODULE} -m pkg.train -x",
        ),
        (
            "/opt/bin/deepspeed --hostfile=hosts train.py 'two words'",
            f"/opt/bin/deepspeed --hostfile=hosts --module {MODULE} train.py 'two words'",
        ),
        (
            "mpirun -np 16 -H n1:8,n2:8 --bind-to none python -u train.py --lr 1",
            "mpirun -np 16 -H n1:8,n2:8 --bind-to none stallwatch run -- python -u train.py --lr 1",
        ),
        ("mpirun --hostfile machines train.py", "mpirun --hostfile machines stallwatch run -- train.py"),
        (
            "srun -N2 --ntasks-per-node=1 torchrun --nnodes 2 train.py",
            "srun -N2 --ntasks-per-node=1 stallwatch run -- torchrun --nnodes 2 train.py",
        ),
        ("srun --nodes=2-4 bash t.sh", "srun --nodes=2-4 stallwatch run -- bash t.sh"),
        ("srun -w n[1-2] bash t.sh", "srun -w 'n[1-2]' stallwatch run -- bash t.sh"),
        ("srun -N 2 ./train", "put stallwatch run -- in front of the program that it launches"),
        (
            "pdsh -w n1,n2 'cd /w; bash t.sh'",
            "put stallwatch run -- in front of the command for the hosts",
        ),
    ],
)
def test_advised_command_starts_an_agent_for_each_rank(command: str, better: str) -> None:
    assert advised(command) == better


def test_advice_depends_on_the_number_of_hosts_of_the_slurm_job() -> None:
    job = {"SLURM_JOB_NUM_NODES": "4"}
    assert advised("srun python train.py", job) == "srun stallwatch run -- python train.py"
    assert advised("mpirun python train.py", job) == "mpirun stallwatch run -- python train.py"
    assert not advised("srun -N1 python train.py", job)
    assert not advised("mpirun -H n1:8 python train.py", job)


def test_advised_command_exports_the_variables_of_agents() -> None:
    environ = {"STALLWATCH_JOIN_SECRET": "s3cret", "STALLWATCH_HOME": "/h", "STALLWATCH_CONFIG": ""}
    line = advised("mpirun -H n1,n2 python train.py", environ)
    both = "-x STALLWATCH_HOME -x STALLWATCH_JOIN_SECRET"
    assert line == f"mpirun -H n1,n2 {both} stallwatch run -- python train.py"
    line = advised("deepspeed -H hosts train.py", environ)
    assert line.endswith("(and add STALLWATCH_HOME, STALLWATCH_JOIN_SECRET to .deepspeed_env)")
    assert "s3cret" not in line
    line = advised("srun -N2 python train.py", run="sft", address="n1:19402")
    assert line == "srun -N2 stallwatch run --run sft --join n1:19402 -- python train.py"
    line = advised("srun -N2 python train.py", {"STALLWATCH_JOIN_RUN": "sft"}, run="sft")
    assert line == "srun -N2 stallwatch run -- python train.py"
    line = advised("srun -N2 python train.py --name x")
    assert line == "srun -N2 stallwatch run --name sft -- python train.py --name x"


@pytest.mark.parametrize(
    "command",
    [
        "torchrun --nnodes 2 train.py",
        "python train.py --launcher srun",
        "python -m train --launcher mpirun -H n1,n2",
        "bash srun -N2",
        "deepspeed train.py",
        "deepspeed --hostfile alone train.py",
        "deepspeed --hostfile none train.py",
        "deepspeed --hostfile hosts --num_nodes 1 train.py",
        "deepspeed --hostfile hosts --no_ssh --node_rank 1 train.py",
        f"deepspeed --hostfile hosts --module {MODULE} train.py",
        "deepspeed --hostfile hosts",
        "mpirun -np 8 python train.py",
        "mpirun -np 8 -H n1:8 python train.py",
        "srun python train.py",
        "srun -N2 stallwatch run -- torchrun train.py",
        "",
    ],
)
def test_command_for_one_host_gets_no_advice(command: str) -> None:
    assert not advised(command)


def test_agent_with_joining_disabled_gets_no_advice() -> None:
    assert not advised("srun -N2 python train.py", mode="off")


def test_secret_in_a_command_is_masked() -> None:
    line = advised("srun -N2 python train.py --api-key sk-aBcDeFgHiJkLmNoPqRsTuVwXyZ123456")
    assert "sk-aBc" not in line and "stallwatch run -- python train.py --api-key" in line
