"""Summarize the state of each run in one row for the Runs page and for the header of the Run page."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, get_args

import msgspec

from stallwatch_alerts.messages.cause import primary_of
from stallwatch_exporter.incident import RANKS, Incident
from stallwatch_exporter.runs import run_state
from stallwatch_exporter.runs.run_state import ENDINGS
from stallwatch_exporter.runs.runfolder import AgentInfo, agent_alive, by_run
from stallwatch_rules.endings import Ending
from stallwatch_rules.records import Progress, is_far_from_end
from stallwatch_rules.text.digest import parse_iso
from stallwatch_rules.text.redact import redact

#: States of runs, most urgent first. The table of runs uses this order.
State = Literal[
    "stalled",
    "failed",
    "stale",
    "degraded",
    "waiting",
    "starting",
    "training",
    "interrupted",
    "unwatched",
    "finished",
]
_WAITED_SECONDS = 60.0  # minimum number of seconds without progress after which a run counts as waiting
_UNTIMED_SECONDS = 180.0  # applies instead if step times are unknown, because log lines can be minutes apart
_WAITED_STEPS = 20


@dataclass(frozen=True, kw_only=True)
class Numbers:
    """The newest values of a run, and the short history that its row shows.

    Times are Unix timestamps in seconds.
    """

    step: float | None = None
    total_steps: float | None = None
    loss: float | None = None
    step_seconds: float | None = None  #: seconds per step in the last few steps
    baseline_seconds: float | None = None  #: seconds per step in the first steps of this run
    invalidations: float | None = None  #: None if invalidations are not counted
    memory_bytes: float | None = None
    host_memory_bytes: float | None = None
    host_memory_limit_bytes: float | None = None
    phase: str = ""
    losses: tuple[float, ...] = ()  #: the loss over time, at most a few dozen values
    stalled_seconds: float | None = None  #: time lost to stalls
    stepping_seconds: float | None = None  #: time spent in steps
    started_at: float | None = None  #: time of the run's first value
    ended_at: float | None = None
    ended_as: str = ""  #: outcome of the run, such as finished or failed, if the metrics show it
    overdue: bool = False  #: True if the time since the last sign of progress exceeds the learned threshold
    progressed_at: float | None = None  #: time of the last sign of progress
    alarm_at: float | None = None  #: time when the lack of progress becomes a stall


@dataclass(frozen=True)
class RunRow(Numbers):
    run: str
    state: State
    host: str = ""  #: the first host of the run
    command: tuple[str, ...] = ()
    open_incidents: tuple[Incident, ...] = ()
    incident: Incident | None = None  #: the incident that explains the current problem, or the end of the run
    cause: str = ""  #: rule of the incident, or of the diagnosis, that explains a failure
    exception: str = ""  #: short form of the exception, if no rule matches the cause
    seen: float | None = None  #: time of the agent's last sign of life
    ending: Ending | None = None  #: how the run ended
    hosts: tuple[str, ...] = ()  #: all hosts, if the run has several

    def seconds(self, now: float) -> float | None:
        if self.started_at is None:
            return None
        until = self.ended_at or (self.seen if self.state == "stale" else None) or now
        return max(0.0, until - self.started_at)

    @property
    def seconds_left(self) -> float | None:
        """The seconds until the run's end, estimated from the pace of the last steps, or None if unknown."""
        if self.state not in ("training", "degraded"):
            return None
        if not (self.step and self.total_steps and self.step_seconds):
            return None
        return max(0.0, self.total_steps - self.step) * self.step_seconds

    def goodput(self, now: float) -> float | None:
        """Return the share of the run's time that steps took, from 0 to 1, or None if it is unknown."""
        whole = self.seconds(now)
        if not whole or whole <= 0 or self.stepping_seconds is None:
            return None
        if self.step is None and not self.stepping_seconds:
            return None
        return min(1.0, self.stepping_seconds / whole)

    @property
    def pace(self) -> float | None:
        """The step time divided by the step time at the start of the run. A value of 2 means half speed."""
        if not self.step_seconds or not self.baseline_seconds:
            return None
        return self.step_seconds / self.baseline_seconds

    @property
    def headroom(self) -> float | None:
        """The bytes of host memory that the training command can still use, or None if no limit is known."""
        if self.host_memory_limit_bytes is None or self.host_memory_bytes is None:
            return None
        return self.host_memory_limit_bytes - self.host_memory_bytes

    @property
    def ended_early(self) -> bool:
        """True if the run finished, but its last known step is far from the last planned step."""
        return self.state == "finished" and is_far_from_end(self.step, self.total_steps)

    @property
    def ended_badly(self) -> bool:
        """True if the run failed, or if it was stopped or its agent ended during a critical incident."""
        if self.state not in ("interrupted", "unwatched") or (last := self.incident) is None:
            return self.state == "failed"
        return last.severity == "critical" and last.began_as[0] != "ended"

    @property
    def invalidations_per_step(self) -> float | None:
        """The number of trace-cache invalidations per step, or None if no step or no count is known."""
        return self.invalidations / self.step if self.step and self.invalidations is not None else None


def state_of(
    info: AgentInfo | None,
    *,
    alive: bool,
    answers: bool,
    now: float,
    incidents: Sequence[Incident],
    step: float | None,
    loss: float | None = None,
) -> State:
    """Return the state of a run. If its agent is silent, the agent's last reports count as out of date.

    Losses in a log without step numbers also show that the run is training. `answers` is true if the agent's
    metrics are up to date, even if the agent's record is out of date.
    """
    recorded: State = "starting"
    if info is not None:
        found = run_state.state_of(info, now, alive=alive, answers=answers)
        recorded = "stale" if found == "gone" else found
    elif not (alive and answers):
        recorded = "stale"
    if recorded == "stale" or (info is not None and info.ended_at is not None):
        return recorded
    open_ones = [incident for incident in incidents if incident.status == "open"]
    if recorded == "stalled" or any(i.kind == "stall" for i in open_ones):
        return "stalled"
    if any(incident.harm == "degrading" for incident in open_ones):
        return "degraded"
    return "training" if step or loss is not None or recorded == "training" else "starting"


@dataclass(frozen=True)
class Agent:
    """One agent of a run, with its record on this host or in a shared state folder."""

    folder: Path
    info: AgentInfo

    @property
    def alive(self) -> bool:
        return self.info.ended_at is None and agent_alive(self.info)

    @property
    def order(self) -> tuple[bool, int]:
        """The key that sorts agents by node. Agents without a node are last."""
        return self.info.node is None, self.info.node or 0

    @property
    def failed(self) -> bool:
        ending = self.info.ending
        return ending is not None and ending.kind not in ENDINGS


def newest_start(agents: Sequence[Agent]) -> Sequence[Agent]:
    """Return the agents of the newest attempt of a job. Several attempts can have the same run name."""
    if len(agents) < 2 or not all(agent.info.key for agent in agents):
        return agents
    kept = sorted(((agent.folder, agent.info) for agent in agents), key=lambda each: -each[1].started_at)
    newest = {folder for folder, _ in by_run(kept)[0]}
    return [agent for agent in agents if agent.folder in newest]


def as_one(agents: Sequence[Agent]) -> AgentInfo | None:
    """Return one record of a run, combined from its agents' records, or None if there are no agents.

    The run is over if an agent has ended and none is running, or if an agent reports a failure. If several
    attempts of a job have the same run name, only the newest attempt counts.
    """
    if not agents:
        return None
    agents = newest_start(agents)
    agents = sorted(agents, key=lambda agent: (agent.order, agent.info.started_at))
    infos = [agent.info for agent in agents]
    ends = [agent for agent in agents if agent.info.ended_at is not None]
    last = max(ends, key=lambda agent: (agent.failed, agent.info.ended_at), default=None)
    over = last is not None and (last.failed or not any(agent.alive for agent in agents))
    stalled = any(agent.info.state == "stalled" and agent.alive for agent in agents)
    return msgspec.structs.replace(
        infos[0],
        started_at=min(info.started_at for info in infos),
        updated_at=max(info.updated_at for info in infos),
        ended_at=max(agent.info.ended_at or 0.0 for agent in ends) if over else None,
        step=max((info.step for info in infos if info.step is not None), default=None),
        total_steps=max((info.total_steps for info in infos if info.total_steps), default=None),
        loss=next((info.loss for info in infos if info.loss is not None), None),
        ending=last.info.ending if over and last is not None else None,
        state=last.info.state if over and last is not None else "stalled" if stalled else infos[0].state,
    )


def hosts_of(agents: Sequence[Agent]) -> tuple[str, ...]:
    """Return the hosts of a multi-host run in node order, or an empty tuple for a run on one host."""
    ordered = sorted(agents, key=lambda agent: (agent.order, agent.info.host_in_run))
    hosts = tuple(dict.fromkeys(agent.info.host_in_run for agent in ordered))
    return hosts if len(hosts) > 1 else ()


def with_final_numbers(scraped: Numbers, logged: Progress) -> Numbers:
    """Return the last values of an ended run.

    The diagnosis supplies values that are more recent than the last scrape.
    """
    return replace(
        scraped,
        step=scraped.step if logged.last_step is None else max(scraped.step or 0, logged.last_step),
        total_steps=logged.total_steps or scraped.total_steps,
        loss=scraped.loss if logged.last_loss is None else logged.last_loss,
    )


def make_row(
    run: str,
    info: AgentInfo | None,
    numbers: Numbers,
    incidents: Sequence[Incident],
    *,
    alive: bool,
    answers: bool,
    seen: float | None,
    now: float,
    hosts: Sequence[str] = (),
) -> RunRow:
    """Return a run's row from all its data. If the agents were not scraped, use the agents' records."""
    open_ones = tuple(incident for incident in incidents if incident.status == "open")
    if info is not None:
        known_steps = [step for step in (numbers.step, info.step) if step is not None]
        numbers = replace(
            numbers,
            step=max(known_steps, default=None),
            total_steps=numbers.total_steps or info.total_steps,
            loss=info.loss if numbers.loss is None else numbers.loss,
        )
    state = state_of(
        info,
        alive=alive,
        answers=answers,
        now=now,
        incidents=open_ones,
        step=numbers.step,
        loss=numbers.loss,
    )
    if info is None and numbers.ended_at is not None:
        state = ENDINGS.get(numbers.ended_as, "failed")
    elif info is None and numbers.overdue and state in ("training", "degraded"):
        state = "stalled"
    started_at = info.started_at if info else numbers.started_at
    if state == "training" and _waits(numbers, started_at, now):
        state = "waiting"
    of_incidents = max((i.total_steps for i in incidents if i.total_steps), default=None)
    ended_at = info.ended_at if info else numbers.ended_at
    if ended_at is None:
        incident = newest(incidents)
    else:
        incident = final_incident(incidents, is_unknown_end=info is not None and info.end_is_unknown)
    if incident is None and state == "stale":  # the incident was closed because no agent watches the run
        incident = max((i for i in incidents if i.unwatched), key=lambda i: i.opened_at, default=None)
    is_fatal = incident is not None and (incident.kind != "finding" or incident.harm == "fatal")
    died_of = incident if state == "failed" and is_fatal else None
    known = vars(numbers) | {
        "total_steps": numbers.total_steps or of_incidents,
        "started_at": started_at,
        "ended_at": ended_at,
    }
    if ended_at is not None:
        known |= _NO_MORE  # these values are out of date after the end
    return RunRow(
        run=run,
        state=state,
        host=redact(info.host) if info else next(iter(hosts), ""),
        hosts=tuple(map(redact, hosts)),
        command=tuple(info.command) if info else (),
        open_incidents=open_ones,
        incident=incident,
        cause=died_of.rule if died_of is not None else "",
        exception=died_of.exception if died_of is not None else "",
        seen=seen,
        ending=info.ending if info else None,
        **known,
    )


_NO_MORE = {"phase": "", "memory_bytes": None, "host_memory_bytes": None, "host_memory_limit_bytes": None}


def _waits(numbers: Numbers, started_at: float | None, now: float) -> bool:
    """Return whether a run that has no reported stall has made no progress for an unusually long time.

    The time without progress must be longer than the total time of all steps. The reason is that the first
    few steps do not establish a regular interval, and that a stall among them is reported only after half an
    hour. If no step has a measured duration, the time from the run's start to its last sign of progress
    counts instead.
    """
    if numbers.progressed_at is None or numbers.phase not in ("", "train"):
        return False
    if numbers.step_seconds is None:
        taken = 0.0 if started_at is None else numbers.progressed_at - started_at
        usual = max(_UNTIMED_SECONDS, taken)
    else:
        usual = max(_WAITED_SECONDS, _WAITED_STEPS * numbers.step_seconds, numbers.stepping_seconds or 0.0)
    return now - numbers.progressed_at > usual


def state_from_log(verdict: str, progress: Progress, *, cause: bool = False) -> State:
    """From the diagnosis of the run's log, return the state of a run that is no longer watched.

    `cause` is true if the diagnosis names a cause. An interrupted run with a cause counts as failed, because
    the system, and not a user, stopped the run.
    """
    if verdict in ("failed", "unknown-failure") or (verdict == "interrupted" and cause):
        return "failed"
    if verdict == "interrupted":
        return "interrupted"
    return "finished" if progress.finished else "unwatched"


def newest(incidents: Sequence[Incident]) -> Incident | None:
    """Return the open incident to show first: a stall, or else the newest of the most severe incidents."""
    open_ones = [incident for incident in incidents if incident.status == "open"]
    return max(open_ones, key=lambda i: (i.kind == "stall", RANKS[i.severity], i.opened_at), default=None)


def final_incident(incidents: Sequence[Incident], *, is_unknown_end: bool = False) -> Incident | None:
    """Return the incident about the run's end, or else an incident that was not resolved before the end.

    If the end of the run is unknown, an incident that was closed because no agent was left also counts as
    unresolved.
    """
    ended = [incident for incident in incidents if incident.kind == "ended"]
    unsolved = [i for i in incidents if i.status == "open" or i.outlasted or (is_unknown_end and i.unwatched)]
    return max(ended or unsolved, key=lambda incident: incident.opened_at, default=None)


def began(incident: Incident) -> float:
    """Return the Unix time of the problem's start: the last step before a stall, or the cause's log line."""
    if incident.kind == "stall":
        return incident.quiet_since
    primary = primary_of(incident)
    # A time without a time zone cannot be compared with the agent's clock.
    if primary is not None and primary.time is not None and primary.time.endswith("Z"):
        with suppress(ValueError):  # the record might come from another program
            return min(incident.opened_at, parse_iso(primary.time))
    return incident.opened_at


def lasted(incident: Incident, now: float) -> float | None:
    """Return how many seconds the problem lasted, or None if the incident reports only the end of a run."""
    if incident.began_as[0] == "ended":
        return None
    end = incident.updated_at if incident.kind == "ended" else now
    return max(0.0, (incident.resolved_at or end) - began(incident))  # at least 0, because clocks can differ


def later_attempt(run: str, names: Sequence[str]) -> str | None:
    """Return the name of the newest attempt of this run, or None if `run` is the newest attempt.

    The name of an attempt is the name of the first run, followed by a number. `names` contains the names of
    all runs, newest first.
    """
    numbered = re.fullmatch(r"(.+)-(?:[2-9]|[1-9]\d+)", run)
    base = numbered[1] if numbered is not None and numbered[1] in names else run
    same = re.compile(re.escape(base) + r"-(?:[2-9]|[1-9]\d+)")
    newest_name = next((name for name in names if name == run or same.fullmatch(name)), run)
    return None if newest_name == run else newest_name


def in_order(rows: Sequence[RunRow]) -> list[RunRow]:
    """Sort the runs. Runs that need attention come first and, within a state, the newest run comes first.

    Ended runs come last. Among them, runs that failed, or whose watch ended during a critical incident such
    as a stall, come first. Within both groups, runs are sorted only by time.
    """

    def key(row: RunRow) -> tuple[bool, int, float]:
        over = row.ended_at is not None
        rank = (not row.ended_badly) if over else get_args(State).index(row.state)
        return over, int(rank), -(row.ended_at or row.started_at or 0.0)

    return sorted(rows, key=key)
