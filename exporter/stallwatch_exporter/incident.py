"""Incidents of a run (a stall, a finding, or the end of the run), stored as facts that the sinks format."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal, get_args

import msgspec

from stallwatch_rules.endings import Ending, Outcome, ending_name, interruption
from stallwatch_rules.messages import Message, Text, message
from stallwatch_rules.records import Primary
from stallwatch_rules.stacks.records import StallStacks

if TYPE_CHECKING:
    from stallwatch_exporter.runs.runfolder import AgentInfo

UNKNOWN_FAILURE = "unknown-failure"  #: rule name for a failure that no rule page explains
RANK_GONE = "rank-gone"  #: rule name (without a page) for a rank that was ended from outside its program
HOST_GONE = "host-gone"  #: rule name (without a page) for a host that no longer reports
HOST_MISSING = "host-missing"  #: rule name (without a page) for hosts of a run that have never reported

Kind = Literal["stall", "finding", "ended"]
Severity = Literal["critical", "warning", "info"]
#: Number of each severity. A worse severity has a higher number.
RANKS: Mapping[str, int] = {"info": 0, "warning": 1, "critical": 2}
Status = Literal["open", "resolved"]
# "unmended": the run has ended, so nothing can resolve the incident anymore.
Resolution = Literal["", "recovered", "run-finished", "run-failed", "run-stopped", "unmended", "unknown"]


class Event(msgspec.Struct, frozen=True):
    """One entry in an incident's history."""

    at: float
    what: Literal["opened", "worse", "stacks", "cause", "cleared", "closed"]
    kind: Kind
    rule: str
    severity: Severity
    rank: int | None = None


class Incident(msgspec.Struct, kw_only=True):
    """One episode of problems in a run. Sinks receive the incident when it opens, changes, and resolves.

    In the agent and its journal, an incident is a single problem of one kind and rule. The module
    ``watching.episodes`` combines these problems.
    """

    id: str  #: "<run>/<kind>/<rule>/<episode>", which is set when the incident opens and never changes
    run: str
    kind: Kind
    rule: str
    severity: Severity
    status: Status
    episode: int  #: number of the episode, counted from 1 for each run, kind, and rule
    opened_at: float
    updated_at: float
    resolved_at: float | None = None
    resolution: Resolution = ""
    host: str = ""
    phase: str = "train"
    rank: int | None = None
    step: int | None = None
    total_steps: int | None = None
    last_loss: float | None = None
    stalled_since: float | None = None  #: last time of progress before the stall; see `quiet_since`
    stalled_seconds: float | None = None  #: seconds from `stalled_since` to the last update or the end
    threshold_seconds: float | None = None
    learning: bool = False  #: True if the default threshold is used because the run's durations are unknown
    at_floor: bool = False  #: True if the threshold is the minimum that the settings allow
    harm: str = "fatal"
    count: int = 1
    evidence: list[Text] = []  #: redacted lines
    exception: str = ""  #: exception summary if no rule matches, such as ``ValueError: message (train.py:8)``
    next_steps: list[Text] = []  #: advice on the exception, if no rule matches the cause
    note: Text = ""  #: explanation of the impact
    primary: Primary | None = None  #: cause in the diagnosis at the time of the incident
    #: True if the cause shows only that other processes of the run could not be reached
    of_peers: bool = False
    ending: Ending | None = None
    stacks: StallStacks | None = None  #: stacks of the ranks, on this host or on all hosts of the run
    hosts: list[str] = []  #: Reporting hosts, if the run has several hosts. `host` is the host of `rank`.
    #: Unix time of the last report, by host, if the incident is about hosts that no longer report.
    gone_hosts: dict[str, float] = {}
    run_hosts: int = 0  #: number of hosts of the run, including hosts that do not report, or 0 if unknown
    attempt: int = 0  #: number of the job attempt
    aliases: list[str] = []  #: IDs of the merged incidents, as "<agent> <ID>", if the run has several hosts
    background: list[str] = []  #: rules that also matched but are not the cause
    folder: str = ""  #: folder of the run on the incident's host, or on `folder_host` if it is set
    folder_host: str = ""  #: host of `folder`, if the run has several hosts
    kept: Text = ""  #: location of the run's record, if it is not in the state folder
    history: list[Event] = []  #: events of the episode, oldest first

    @property
    def began_as(self) -> tuple[str, str]:
        """Kind and rule when the incident opened.

        The fields `kind` and `rule` change if a finding becomes the run's end.
        """
        parts = self.id.rsplit("/", 3)
        if len(parts) == 4 and parts[1] in get_args(Kind):
            return parts[1], parts[2]
        return self.kind, self.rule

    @property
    def is_standstill(self) -> bool:
        """True if the stacks, rather than the log, show which rank holds up the run."""
        return is_standstill(self.rule)

    @property
    def quiet_since(self) -> float:
        """Time of the last sign of progress before the stall. The stall's duration starts at this time."""
        if self.stalled_since is not None:
            return self.stalled_since
        # Records of versions 0.1 and 0.2.0 contain only the threshold and the duration, updated at intervals.
        stalls = [event.at for event in self.history if (event.what, event.kind) == ("opened", "stall")]
        start = (stalls[-1] if stalls else self.opened_at) - (self.threshold_seconds or 0.0)
        if self.stalled_seconds is None:
            return start
        return min(start, (self.resolved_at or self.updated_at) - self.stalled_seconds)

    @property
    def outcome(self) -> Outcome | None:
        """Outcome of the incident, or ``None`` if it is open or its agent ended without closing it."""
        if self.status == "open" or self.unwatched:
            return None
        if self.resolution in ("", "recovered"):
            return "recovered"
        if self.ending is not None:
            return self.ending.outcome
        return "crashed" if self.resolution == "run-failed" else "ended"

    @property
    def run_ending(self) -> Message:
        """Description of the end of the run, if this end closed the incident."""
        if self.resolution == "run-failed":
            return ending_name(self.ending or Ending("failed", None))
        return interruption(self.ending)

    @property
    def closing(self) -> Message:
        """Phrase that describes the end, such as ``recovered`` or ``ended with the run: failed``."""
        how = "unwatched" if self.watch_ended else self.resolution
        return message(f"endings.{'-'.join(filter(None, ('over', how)))}", ending=self.run_ending)

    @property
    def stage(self) -> str:
        """Stage of the notification: ``open``, ``worse`` (a warning became critical), or ``resolved``."""
        if self.status == "open" and self.severity == "critical" and self.history:
            return "worse" if self.history[0].severity != "critical" else "open"
        return self.status

    @property
    def is_settled(self) -> bool:
        """Return whether the incident needs no attention, because it is closed and the run did not crash."""
        never_fixed = self.unwatched or self.resolution == "unmended"
        return self.status == "resolved" and not never_fixed and self.outcome != "crashed"

    def concerns(self, *, kind: str = "", rule: str = "") -> bool:
        """Return whether a problem of this kind, or with this rule, is part of the incident."""
        parts = [(self.kind, self.rule), self.began_as, *((event.kind, event.rule) for event in self.history)]
        return any(kind in ("", a_kind) and rule in ("", a_rule) for a_kind, a_rule in parts)

    @property
    def became_end(self) -> bool:
        """Return whether the incident began before the run ended and caused the end of the run."""
        return self.kind == "ended" and self.began_as[0] != "ended"

    @property
    def is_final_incident(self) -> bool:
        """Return whether the incident can no longer change because its run has ended."""
        return self.kind == "ended" or self.resolution == "unmended"

    @property
    def outlasted(self) -> bool:
        """Return whether the incident was still open when its run ended, and so was never fixed."""
        return self.resolution in ("run-failed", "run-stopped", "unmended")

    @property
    def run_is_over(self) -> bool:
        """Return whether the incident is known to have ended with its run, so that no process is left."""
        return self.kind == "ended" or self.outlasted or self.resolution == "run-finished"

    @property
    def unwatched(self) -> bool:
        """Return whether the incident was closed without evidence because no agent watches its run."""
        return self.status == "resolved" and self.resolution == "unknown"

    @property
    def watch_ended(self) -> bool:
        """Return whether the incident was closed because its ``stallwatch tail`` was stopped."""
        return self.unwatched and self.ending is not None


def is_standstill(rule: str) -> bool:
    """Return whether stacks, rather than the log, show which rank holds up a run in a stall of this rule."""
    from stallwatch_rules.judgements.conclusions import STANDSTILLS  # slow to import

    return rule == UNKNOWN_FAILURE or rule in STANDSTILLS


def left_open(incident: Incident, info: AgentInfo) -> Incident:
    """Return a copy of an incident, closed at the time at which the agent ended or last reported."""
    at = max(info.ended_at or info.updated_at, incident.opened_at)
    return msgspec.structs.replace(
        incident, status="resolved", resolution="unknown", resolved_at=at, ending=info.ending
    )


Sink = Callable[[Incident], None]
"""Function that receives every change of an incident and returns immediately; the agent counts its errors.

A sink can also have any of the following members. In this list, ``id`` is the ID of an incident:

* ``alive(problem)`` is called about once a second, after the agent has checked the run. ``problem`` describes
  the checks that failed and is empty if all checks succeeded.

In a run across several hosts, a sink receives the incidents of the agent that merges the reports:

* ``adopt(incident)`` is called after another agent reported this state of the incident. If a sink does not
  have this method, the sink itself is called when an incident that it received earlier ends.
* ``release(id)`` is called when another agent takes over the escalation of the incident.
* ``escalates(id)`` returns whether this agent has planned the escalation of the incident.
* ``has_sent(id)`` returns whether all due messages about the incident were delivered.
* ``is_shared`` is true if all agents write to the same place, so that no agent repeats the report of another
  agent.
"""


def optional_methods(sinks: Iterable[object], name: str) -> list[Callable[..., Any]]:
    """Return the method with this name from each sink that has such a method."""
    return [method for sink in sinks if (method := getattr(sink, name, None)) is not None]
