"""Which run an agent belongs to, by what the scheduler and the launcher say."""

from __future__ import annotations

from typing import Literal

import msgspec

Origin = Literal["flags", "slurm", "jobset", "kubeflow", "ray", "mpi", "command", "ranks"]


class RunIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """A run that may have several agents, as one of them knows it. Equal `key`: the same run."""

    key: str  #: 16 hexadecimal digits; of the scheduler, the job and the attempt
    job: str  #: such as ``8123.0``
    attempt: int = 0
    origin: Origin
    master: str = ""  #: HOST or HOST:PORT at which the first agent may be reached
    hosts: tuple[str, ...] = ()  #: of the run, in the scheduler's order; empty where nobody lists them
    node: int | None = None  #: the number of this host among them
    agents: int | None = None  #: how many are expected, if that is known
    provisional: bool = False  #: another run may have the same; what the ranks say later decides

    def run_label(self, name: str) -> str:
        """The run's name on every host: that which the user or the script gave it, and the job."""
        attempt = f"-r{self.attempt}" if self.attempt else ""
        return f"{name}-{self.job}{attempt}" if self.origin != "flags" else f"{name}{attempt}"
