"""Identify an agent's run from the scheduler, the launcher, and the ranks.

Some of the variables are documented under OUTPUT ENVIRONMENT VARIABLES in srun(1) of Slurm 22.05. The other
variables were recorded in programs that ran under ``srun``, ``sbatch``, or the ``mpirun`` of Open MPI 4.1.4
(tests/exporter/cluster/environments).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal

import msgspec

from stallwatch_exporter.cluster.host import split_address
from stallwatch_exporter.cluster.nodelists import BadNodeList, expand
from stallwatch_exporter.runs.naming import LONGEST, sanitise
from stallwatch_exporter.settings import JoinSettings, is_own_address
from stallwatch_rules.text.lazy import lazy

Origin = Literal["flags", "slurm", "jobset", "kubeflow", "mpi", "command", "ranks"]
_LONGEST_JOB = 60
_LONGEST_NAME = LONGEST - 12  # leaves 12 characters for the attempt
_ADDRESS = lazy(r"(?a)\[[0-9A-Fa-f:.]{2,45}\](?::\d{1,5})?|[\w.-]{1,253}(?::\d{1,5})?|[0-9A-Fa-f:.]{2,45}")
# Pods of a PyTorchJob have names such as <job>-master-0 and <job>-worker-3. Pods of a JobSet, including the
# JobSets of Kubeflow Trainer, have names such as <set>-<job>-0-0 in the domain <set>.
_POD = lazy(r"(.+?)-(?:master|worker|launcher|node|replica)-\d+(?:-\d+)?")
_OF_JOBSET = lazy(r"(?P<pod>[\w-]+-\d+-\d+)\.(?P<set>[\w-]+)(?:\..*)?")
_TCP = lazy(r"tcp6?://([^;:]+):\d+")  # example from Open MPI: 99;tcp://10.0.0.1,10.1.0.1:37225;tcp6://…
_PROGRAMS = {"torchrun", "accelerate", "deepspeed"}
_MODULES = {"torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch"}
_MODULES |= {"deepspeed.launcher.runner"}
_SHELLS = {"bash", "sh", "env", "numactl"}
_PYTHON = lazy(r"(?:.*/)?python[\d.]*")
_STARTERS = {"srun", "mpirun", "mpiexec", "orterun", "prun", "pdsh", "ssh", "kubectl", "ray"}


class RunIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """Identity of a run that can have several agents. All agents of the run have the same `key`."""

    key: str  #: 16 hexadecimal digits, derived from the scheduler, the job, and the attempt
    job: str  #: job ID, such as ``8123.0``
    attempt: int = 0
    origin: Origin
    master: str = ""  #: HOST or HOST:PORT at which the first agent is expected
    hosts: tuple[str, ...] = ()  #: hosts of the run in the scheduler's order, or empty if there is no list
    node: int | None = None  #: index of this host among `hosts`
    agents: int | None = None  #: expected number of agents, or ``None`` if unknown
    provisional: bool = False  #: true if the key might not be unique before the ranks' environment is known

    def run_label(self, name: str) -> str:
        """Return the name that all hosts use for the run, built from `name`, the job, and the attempt."""
        attempt = f"-r{self.attempt}" if self.attempt else ""
        if self.origin == "flags":
            return f"{self.job}{attempt}"
        end = f"-{self.job}{attempt}"
        return sanitise(f"{sanitise(name)[: LONGEST - len(end)]}{end}")


def identify(
    environ: Mapping[str, str],
    command: Sequence[str],
    join: JoinSettings,
    hostname: str,
    *,
    name: str = "",
) -> RunIdentity | None:
    """Return the run that an agent belongs to, or ``None`` if the run has no other agent.

    `name` is the user's name for the run, or the name of the script. It distinguishes the runs of one job,
    such as consecutive programs or trials in a Slurm step.
    """
    if join.mode == "off":
        return None
    facts = _Facts(environ, command, hostname)
    origins = () if starts_elsewhere(command) else _ORIGINS
    found = next(filter(None, (origin(facts, name) for origin in origins)), None)
    if join.run:
        job = sanitise(join.run)[:_LONGEST_NAME]
        attempt = found.attempt if found is not None else _number(environ.get("SLURM_RESTART_COUNT")) or 0
        same = found or RunIdentity(key="", job=job, origin="flags")
        key = _key("flags", job, attempt)
        found = msgspec.structs.replace(
            same, key=key, job=job, attempt=attempt, origin="flags", provisional=False
        )
    if found is not None and (address := _address(join.address)):
        found = msgspec.structs.replace(found, master=address)
    return found


def with_ranks(identity: RunIdentity | None, environ: Mapping[str, str]) -> RunIdentity | None:
    """Return the identity of a run, completed with variables from the environment of a rank.

    An identity that is not provisional is returned unchanged. torchrun sets all variables that this function
    uses (torch 2.13, distributed/elastic/agent/server/local_elastic_agent.py), even if a script starts
    torchrun. If torchrun itself manages the rendezvous, `MASTER_PORT` changes at each start.
    """
    if identity is not None and not identity.provisional:
        return identity
    address, port = _address(environ.get("MASTER_ADDR")), environ.get("MASTER_PORT", "")
    nodes = _nodes_of_rank(environ)
    if _is_local(split_address(address)[0]) or _number(port) is None or nodes < 2:
        return identity
    known = environ.get("TORCHELASTIC_RUN_ID", "")
    known = "" if known == "none" else known
    key = _key("ranks", known, address.lower(), port)
    if identity is not None:
        return msgspec.structs.replace(identity, key=key, provisional=False)
    return RunIdentity(
        key=key,
        job=_job(known or f"{address}-{port}"),
        origin="ranks",
        master=address,
        node=_number(environ.get("GROUP_RANK") or environ.get("CROSS_RANK")),
        agents=nodes,
    )


def _nodes_of_rank(environ: Mapping[str, str]) -> int:
    """Return the number of hosts according to the variables of torchrun or DeepSpeed (launcher/launch.py)."""
    nodes = _number(environ.get("GROUP_WORLD_SIZE") or environ.get("CROSS_SIZE"))
    if nodes is not None:
        return nodes
    world = _number(environ.get("WORLD_SIZE"))
    local = _number(environ.get("LOCAL_WORLD_SIZE") or environ.get("LOCAL_SIZE"))
    return -(-world // local) if world and local else 1


class _Facts:
    """Facts about a run, derived from the environment and the command of one agent."""

    def __init__(self, environ: Mapping[str, str], command: Sequence[str], hostname: str) -> None:
        self.environ = environ
        self.hostname = hostname.partition(".")[0]
        self.launcher = _launcher_options(command)

    def get(self, *names: str) -> str:
        """Return the first nonempty value among these variables, or an empty string."""
        return next(filter(None, (self.environ.get(name, "") for name in names)), "")

    def option(self, name: str, *others: str, variables: Sequence[str] = ()) -> str:
        """Return the value of a launcher option, or of one of `variables` if the option is not set.

        torchrun also reads each option from a variable with the prefix ``PET_`` (torch 2.13,
        distributed/argparse_util.py).
        """
        for alias in (name, *others):
            if alias in self.launcher:
                return self.launcher[alias]
        return self.get(f"PET_{name.upper()}", *variables)

    @property
    def nodes(self) -> tuple[int, int] | None:
        """Minimum and maximum number of nodes in the launcher's options, or ``None`` if they are not set."""
        text = self.option("nnodes", "num_machines", "num_nodes", variables=("NNODES",))
        counts = [count for part in text.split(":", 2) if (count := _number(part))]
        return (min(counts), max(counts)) if counts else None


def _by_mpirun(facts: _Facts, name: str) -> RunIdentity | None:
    """Identify the run of ``mpirun … stallwatch run`` from the variables of Open MPI.

    MPICH and Intel MPI set no variable that distinguishes jobs on the same hosts. In a Slurm job, call this
    function before `_by_slurm` because mpirun starts only the ranks on other hosts in a step.
    """
    size = _number(facts.get("OMPI_COMM_WORLD_SIZE"))
    # Open MPI 4.x sets a random number for each job. In 5.x, the namespace contains the
    # hostname and the process ID of mpirun.
    job = facts.get("OMPI_MCA_orte_precondition_transports")
    job = job or " ".join((facts.get("PMIX_NAMESPACE"), facts.get("OMPI_MCA_orte_hnp_uri")))
    if not size or size < 2 or not job.strip():
        return None
    restarted = _number(facts.get("SLURM_RESTART_COUNT")) or 0
    key = _key("mpi", job, name)
    at = _TCP.findall(facts.get("OMPI_MCA_orte_hnp_uri")[:4096])
    addresses = [address for group in at for address in group.split(",") if not _is_local(address)]
    return RunIdentity(
        key=key,
        job=key[:8],
        attempt=restarted,
        origin="mpi",
        master=_address(next(iter(addresses), "")),
        agents=size,
    )


def _by_slurm(facts: _Facts, name: str) -> RunIdentity | None:
    """Identify the run of ``srun … stallwatch run``, which is a task of a step with several tasks.

    A batch script does not count as a step, because its programs run on one host. Steps are renumbered after
    a requeue, so the restart count is part of the key. In a job array, each task has its own job number,
    which users know as ``4711_3``. All components of a heterogeneous step have the same number.
    """
    job, step = facts.get("SLURM_JOB_ID", "SLURM_JOBID"), facts.get("SLURM_STEP_ID", "SLURM_STEPID")
    tasks = _number(facts.get("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"))
    if not job or not step or not tasks or tasks < 2:
        return None
    restarted = _number(facts.get("SLURM_RESTART_COUNT")) or 0
    array = facts.get("SLURM_ARRAY_JOB_ID"), facts.get("SLURM_ARRAY_TASK_ID")
    hosts: tuple[str, ...] = ()
    with suppress(BadNodeList):
        hosts = expand(facts.get("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"))
    host = facts.get("SLURMD_NODENAME") or facts.hostname
    return RunIdentity(
        key=_key("slurm", facts.get("SLURM_CLUSTER_NAME"), job, step, restarted, name),
        job=_job(f"{'_'.join(array) if all(array) else job}.{step}"),
        attempt=restarted,
        origin="slurm",
        master=hosts[0] if hosts else "",
        hosts=hosts,
        node=hosts.index(host) if host in hosts else _number(facts.get("SLURM_NODEID")),
        agents=tasks,
    )


def _by_launcher(facts: _Facts, name: str) -> RunIdentity | None:
    """Identify the run of a launcher by the rendezvous address of the launcher's instances.

    An instance of the launcher runs on each host or in each Kubernetes Pod.
    """
    if "standalone" in facts.launcher or facts.get("PET_STANDALONE") not in ("", "0"):
        return None
    known = facts.option("rdzv_id")
    known = "" if known == "none" else known
    endpoint = facts.option("rdzv_endpoint")
    # If torchrun has an endpoint, it ignores all other addresses.
    master = endpoint or facts.option("master_addr", "main_process_ip", variables=("MASTER_ADDR",))
    port = facts.option("master_port", "main_process_port", variables=("MASTER_PORT",))
    if port and not endpoint:
        master = f"[{master}]:{port}" if master.count(":") > 1 and "[" not in master else f"{master}:{port}"
    master = _address(master).lower()
    host, _ = split_address(master)
    # A launcher has the variable RANK only if the job sets it in each Pod.
    ranks = _number(facts.get("WORLD_SIZE")) if facts.get("RANK") else None
    nodes = facts.nodes or ((ranks, ranks) if ranks else None)
    jobset = _jobset(facts, host)
    # DeepSpeed reads the number of nodes from a file, so no option sets it.
    if _is_local(host) or not (nodes[1] > 1 if nodes else jobset or "no_ssh" in facts.launcher):
        return None
    node = facts.option("node_rank", "machine_rank", variables=("NODE_RANK", "RANK"))
    inside = any(name.startswith("PET_") for name in facts.environ) or facts.get("KUBERNETES_SERVICE_HOST")
    space, pod = facts.get("POD_NAMESPACE"), _POD.fullmatch(host.partition(".")[0]) if inside else None
    expected = nodes[0] if nodes and nodes[0] == nodes[1] else None
    if jobset:
        attempt = _number(facts.get("JOBSET_RESTART_ATTEMPT")) or 0
        return RunIdentity(
            key=_key("jobset", space, jobset, attempt, name),
            job=_job(jobset),
            attempt=attempt,
            origin="jobset",
            master=host,
            node=_number(node or facts.get("JOB_COMPLETION_INDEX")),
            agents=expected,
        )
    return RunIdentity(
        key=_key("launcher", space, known, master, name),
        job=_job(known or (pod[1] if pod else master)),
        origin="kubeflow" if inside else "command",
        master=host,
        node=_number(node),
        agents=expected,
        provisional=bool(endpoint) and not known,
    )


def _jobset(facts: _Facts, host: str) -> str:
    """Read the JobSet of a Pod from a variable that the user can set, or from the name of the first Pod.

    The controller itself sets only ``JOB_COMPLETION_INDEX``, the index of the Pod.
    """
    given = facts.get("JOBSET_NAME", "METAFLOW_KUBERNETES_JOBSET_NAME")
    of = _OF_JOBSET.fullmatch(host) if facts.get("JOB_COMPLETION_INDEX") else None
    return given or (of["set"] if of and of["pod"].startswith(f"{of['set']}-") else "")


_ORIGINS: tuple[Callable[[_Facts, str], RunIdentity | None], ...] = (_by_mpirun, _by_slurm, _by_launcher)


def _launcher_options(command: Sequence[str]) -> dict[str, str]:
    """Return the launcher's options in the command, or an empty mapping if the launcher uses ssh.

    If ``--no_ssh`` is not set, the DeepSpeed launcher uses ssh, and the run has a single agent.
    """
    words = iter(command)
    for word in words:
        program = next(words, "") if word == "-m" else ""
        if program in _MODULES or Path(word).name in _PROGRAMS:
            found = _options(words)
            is_deepspeed = "deepspeed" in (program.partition(".")[0], Path(word).name)
            return found if not is_deepspeed or "no_ssh" in found else {}
        if program or _is_script(word):
            break
    return {}


def _options(words: Iterable[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    waiting = ""
    for word in words:
        if word in ("-m", "--module", "--") or _is_script(word):
            break
        if waiting and not word.startswith("--"):
            found[waiting] = word
            waiting = ""
        elif word.startswith("--"):
            name, assigned, value = word[2:].partition("=")
            name = name.replace("-", "_")
            found[name] = value
            waiting = "" if assigned else name
    return found


def starts_elsewhere(command: Sequence[str]) -> bool:
    """Return whether the command starts its ranks through a program such as ``srun``.

    If these ranks have agents, that program also starts the agents.
    """
    for word in command:
        program = Path(word).name
        if program in _STARTERS:
            return True
        if program in _PROGRAMS or word in _MODULES or _is_script(word):
            break
    return False


def is_program(word: str) -> bool:
    """Return whether a word after a launcher looks like the program that the launcher starts."""
    return Path(word).name in _PROGRAMS | _SHELLS or bool(_PYTHON.fullmatch(word)) or _is_script(word)


def _is_script(word: str) -> bool:
    return word.endswith((".py", ".sh"))


def _key(*parts: object) -> str:
    return hashlib.sha256(ascii(tuple(map(str, parts))).encode()).hexdigest()[:16]


def _job(text: str) -> str:
    safe = sanitise(text[: 10 * _LONGEST_JOB])
    # Add a hash because two jobs can differ only in the omitted part.
    return safe if len(safe) <= _LONGEST_JOB else f"{safe[: _LONGEST_JOB - 9]}-{_key(text)[:8]}"


def _number(text: str | None) -> int | None:
    """Return the text as a number, or ``None`` if the text is not a count or an index."""
    return int(text) if text and re.fullmatch(r"[0-9]{1,9}", text) else None


def _address(text: str | None) -> str:
    """Return the text if it is HOST or HOST:PORT, or an empty string otherwise."""
    text = (text or "").strip()
    return text if _ADDRESS.fullmatch(text) else ""


def _is_local(host: str) -> bool:
    """Return whether the host is unknown or has a name that every host uses for itself."""
    host = host.lower()
    return host in ("", "0.0.0.0", "::") or host.startswith("localhost.") or is_own_address(host)
