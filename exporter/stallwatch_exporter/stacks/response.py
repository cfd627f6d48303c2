"""What a run's stall sets in motion: looks at its ranks before it, and what the user wants done after it."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from stallwatch_exporter.incident import Ending, Incident
from stallwatch_exporter.rings.probing import Probing
from stallwatch_exporter.running.ending_words import ABORTED
from stallwatch_exporter.runs.runfolder import RunFolder
from stallwatch_exporter.stacks.evidence import Evidence
from stallwatch_exporter.stacks.localranks import is_alone, is_launching
from stallwatch_exporter.stacks.reaction import ABORT, react


class Response:
    """`evidence` looks at the ranks; ``react`` does as `policy` says."""

    def __init__(
        self, folder: RunFolder, policy: str, probing: Probing | None, notice: Callable[[str], None]
    ) -> None:
        self.aborted = False  #: the command was ended by us
        self._policy = policy
        self._notice = notice
        self._path = folder.path if folder.problem is None else None
        self._rings = probing.folder if probing is not None else None
        self.evidence = Evidence(self._rings, self._path, folder.run, notice)
        self._explained = False

    def watch(self, command: int) -> None:
        """The process that was started: its descendants may be ranks, and it can be ended."""
        self.evidence.command = command

    def alone(self) -> bool:
        """Whether the command is one process that no launcher started, as far as can be seen."""
        return is_alone(self._rings, self.evidence.command)

    def launching(self) -> bool:
        """Whether the command is a launcher that has started no rank yet."""
        return is_launching(self._rings, self.evidence.command)

    def explain(self, nobody: str) -> None:
        """Say once why nobody could be asked at a stall, if that is so."""
        if nobody and not self._explained:
            self._explained = True
            self._notice(nobody)

    def judged(self, ending: Ending) -> Ending:
        """How the command ended, if need be with who ended it."""
        if not self.aborted or ending.kind == "finished":
            return ending
        ended_by = ending.signal or "SIGTERM"  # a launcher that it was sent to exits with a code
        return msgspec.structs.replace(
            ending, kind="killed", signal=ended_by, detail=f"{ABORTED} {ending.detail}"
        )

    def react(self, incident: Incident) -> None:
        """Do what the user wants done at a stall; returns at once."""
        command = self.evidence.command
        started = react(
            self._policy, incident, command, self._notice, folder=str(self._path) if self._path else ""
        )
        self.aborted = self.aborted or (started is not None and self._policy == ABORT)
