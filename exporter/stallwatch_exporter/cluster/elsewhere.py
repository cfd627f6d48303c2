"""For launchers that start ranks on other hosts, suggest a command that starts an agent for each rank."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from stallwatch_exporter.cluster.identity import is_program
from stallwatch_exporter.cluster.nodelists import BadNodeList, expand
from stallwatch_exporter.runs.naming import redacted_command
from stallwatch_exporter.settings import JoinSettings
from stallwatch_rules.text.lazy import lazy

#: User script for the DeepSpeed option ``--module``. It starts an agent and then the real script.
MODULE = "stallwatch.integrations.deepspeed"
_MPIRUN = ("mpirun", "mpiexec", "orterun", "prun")
_DEEPSPEED = ("deepspeed", "deepspeed.pt", "deepspeed.launcher.runner")
_HOSTFILE = "/job/hostfile"  # default path in DeepSpeed 0.19.8, launcher/runner.py
_LONGEST = 600
_SLOTS = lazy(r"^\s*([\w.-]+)(?:[:\s].*)?$")
# Words that can precede a launcher in a command.
_BEFORE = lazy(r"-.*|\w+=.*|(?:.*/)?(?:python[\d.]*|env|nice|nohup|time)|\d+")
# DeepSpeed options that take no value.
_FLAGS = {"no_python", "no_local_rank", "no_ssh", "no_ssh_check", "force_multi", "save_pid", "quiet"}
_FLAGS |= {"elastic_training", "bind_cores_to_rank"}


def advice(
    command: Sequence[str],
    environ: Mapping[str, str],
    join: JoinSettings,
    *,
    name: str | None = None,
    read: Callable[[str], str] = lambda path: Path(path).read_text("utf-8", "replace"),
) -> str:
    """Return one line of advice, or an empty string unless the command starts ranks on other hosts.

    The command itself is not changed, because an option for one launcher can break a different launcher.
    """
    words = redacted_command(command)
    if join.mode == "off" or any(Path(word).name == "stallwatch" or word == MODULE for word in words):
        return ""
    at = next((index for index, word in enumerate(words) if Path(word).name in _ADVISERS), None)
    if at is None or not all(_BEFORE.fullmatch(word) for word in words[:at]):
        return ""
    launcher = Path(words[at]).name
    options = _options(name, join, environ)
    better = _ADVISERS[launcher](_Start(words[: at + 1], words[at + 1 :], environ, options, read))
    if better is None:
        return ""
    shown = better if len(better) <= _LONGEST else f"{better[:_LONGEST]}…"
    return f"{launcher} starts ranks on hosts that Stallwatch does not watch; to watch all ranks: {shown}"


def _options(name: str | None, join: JoinSettings, environ: Mapping[str, str]) -> list[str]:
    """Return the options of ``stallwatch run`` that the agents on other hosts also need."""
    found = ["--name", name] if name else []
    for option, value, variable in (
        ("--run", join.run, "STALLWATCH_JOIN_RUN"),
        ("--join", join.address, "STALLWATCH_JOIN_ADDRESS"),
    ):
        if value and not environ.get(variable):
            found += [option, value]
    return found


class _Start(NamedTuple):
    launcher: Sequence[str]  #: words of the command up to and including the launcher
    rest: Sequence[str]
    environ: Mapping[str, str]
    options: Sequence[str]  #: options for ``stallwatch run``
    read: Callable[[str], str]

    @property
    def nodes_of_job(self) -> str:
        """Number of hosts in the current Slurm job, as text."""
        return self.environ.get("SLURM_JOB_NUM_NODES") or self.environ.get("SLURM_NNODES") or ""

    @property
    def variables(self) -> list[str]:
        """Names of the ``STALLWATCH_…`` variables, which agents on other hosts also need."""
        return [
            name for name in sorted(self.environ) if name.startswith("STALLWATCH_") and self.environ[name]
        ]

    def hosts_in(self, path: str) -> list[str]:
        """Return the hosts that a host file lists, one on each line."""
        try:
            lines = self.read(path).splitlines()
        except (OSError, ValueError):
            return []
        return [found[1] for line in lines if (found := _SLOTS.match(line))]

    def with_agent(self, before: Sequence[str], at: int) -> str:
        """Insert an agent before the program at index `at`, and return the command.

        If no program is found, return advice instead of a command.
        """
        watched = ["stallwatch", "run", *self.options, "--"]
        if at == len(self.rest):
            return f"put {shlex.join(watched)} in front of the program that it launches"
        return shlex.join([*self.launcher, *before, *watched, *self.rest[at:]])


def _srun(start: _Start) -> str | None:
    at = _program(start.rest)
    before = start.rest[:at]
    given = next(_values(before, "-N", "--nodes"), "") or start.nodes_of_job
    listed = next(_values(before, "-w", "--nodelist"), "")
    counts = [int(count) for count in re.findall(r"[0-9]{1,6}", given)[:2]]
    hosts: Sequence[str] = ()
    with suppress(BadNodeList):
        hosts = expand(listed)
    if max([*counts, len(hosts)], default=1) < 2:
        return None
    return start.with_agent(before, at)


def _mpirun(start: _Start) -> str | None:
    """Return the command for Open MPI, which passes on the variables that ``-x`` names (mpirun(1), 4.1.4)."""
    at = _program(start.rest)
    before = start.rest[:at]
    hosts = {
        entry.partition(":")[0]
        for text in _values(before, "-H", "-host", "--host", "-hosts", "--hosts")
        for entry in text.split(",")
    }
    for path in _values(before, "-hostfile", "--hostfile", "-machinefile", "--machinefile", "-f"):
        hosts |= set(start.hosts_in(path))
    if len(hosts) < 2 and (hosts or start.nodes_of_job in ("", "1")):
        return None
    passed = [word for name in start.variables if name not in before for word in ("-x", name)]
    return start.with_agent([*before, *passed], at)


def _deepspeed(start: _Start) -> str | None:
    """Return the command for DeepSpeed, which then starts the Stallwatch module on each host.

    DeepSpeed exports only variables with certain prefixes (DeepSpeed 0.19.8, launcher/runner.py,
    EXPORT_ENVS), so the variables of Stallwatch must be in ``.deepspeed_env``.
    """
    at = _script_of_deepspeed(start.rest)
    before, script = start.rest[:at], list(start.rest[at:])
    hosts = start.hosts_in(next(_values(before, "--hostfile", "-H"), _HOSTFILE))
    few = "1" in _values(before, "--num_nodes")
    if "--no_ssh" in before or "--no_python" in before or few or len(set(hosts)) < 2 or not script:
        return None
    module = "--module" in before
    before = [word for word in before if word != "--module"]
    script = ["-m", *script] if module else script
    line = shlex.join([*start.launcher, *before, "--module", MODULE, *start.options, *script])
    variables = ", ".join(start.variables)
    return f"{line} (and add {variables} to .deepspeed_env)" if variables else line


def _pdsh(start: _Start) -> str | None:
    return (
        f"put {shlex.join(['stallwatch', 'run', *start.options, '--'])} in front of the command for the hosts"
    )


_ADVISERS: dict[str, Callable[[_Start], str | None]] = {
    "srun": _srun,
    "pdsh": _pdsh,
    **dict.fromkeys(_MPIRUN, _mpirun),
    **dict.fromkeys(_DEEPSPEED, _deepspeed),
}


def _program(words: Sequence[str]) -> int:
    """Return the index of the program that the launcher starts, or the number of words if none is found."""
    return next((index for index, word in enumerate(words) if is_program(word)), len(words))


def _script_of_deepspeed(words: Sequence[str]) -> int:
    """Return the index of the first word after the options of the DeepSpeed launcher."""
    index = 0
    while index < len(words) and words[index].startswith("-"):
        option = words[index].lstrip("-")
        takes = "=" not in option and option not in _FLAGS | {"module"}
        index += 2 if takes else 1
    return min(index, len(words))


def _values(words: Sequence[str], *names: str) -> Iterator[str]:
    """Yield the values of an option, written as ``--name value``, ``--name=value``, or ``-Nvalue``."""
    for word, after in zip(words, [*words[1:], ""], strict=False):
        for name in names:
            if word == name:
                yield after
            elif word.startswith(f"{name}="):
                yield word.partition("=")[2]
            elif len(name) == 2 and name[0] == "-" and word.startswith(name):
                yield word[2:]
