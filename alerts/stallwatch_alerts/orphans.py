"""When an agent starts on a host, report and resolve the incidents of agents that died there."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import msgspec

from stallwatch_exporter.incident import Incident, left_open
from stallwatch_exporter.runs.runfolder import (
    RUN_INCIDENTS,
    AgentInfo,
    agent_alive,
    kept_runs,
    reported_until,
)
from stallwatch_exporter.watching.episodes import Episodes
from stallwatch_exporter.watching.incidents import read_incidents, read_journal
from stallwatch_rules.files import open_to_append

_FRESH_SECONDS = 60.0

_Agents = list[tuple[Path, AgentInfo]]  # folders of runs, with their agents


def report_unsent(home: Path, now: float, notify: Callable[[Incident], None]) -> list[tuple[Path, AgentInfo]]:
    """Report incidents whose messages might be missing, because their agents were killed.

    An agent records an incident shortly before it stores the message. Therefore, `notify` receives the
    incidents that changed shortly before an agent died, and the incidents that the agent left open. No
    message is sent twice, because the database records past notifications. Return the folders of these runs,
    each with its agent. The caller passes the result to `mark_reported` after everything is stored.
    """
    found: _Agents = []
    kept = kept_runs(home)
    for folder, info in _left_behind(kept, now):
        until = reported_until(info, now)
        if until == math.inf:
            continue
        if info.key:
            over = _resolved(_of_run(kept, info.key))
            for incident in _of_all_hosts(folder):
                left = incident.status == "open" and incident.id not in over
                if left or (incident.status == "resolved" and incident.updated_at > until):
                    notify(incident)
        else:
            Episodes(notify, read_journal(folder), until)
        found.append((folder, info))
    return found


def _left_behind(kept: _Agents, now: float) -> _Agents:
    """Return the agents that have ended, with their folders.

    The agents of a multi-host run are included only if all of them have ended.
    """
    watched = {info.key for _, info in kept if info.key and agent_alive(info, now)}
    return [(folder, info) for folder, info in kept if info.key not in watched and _is_gone(info, now)]


def _is_gone(info: AgentInfo, now: float) -> bool:
    # An agent that restarts in this folder needs time, and so does an agent that is about to exit.
    return abs(now - info.updated_at) > _FRESH_SECONDS and not agent_alive(info, now)


def _of_all_hosts(folder: Path) -> list[Incident]:
    """Return the last state of each incident in the folder's journal, which merges all hosts' incidents."""
    return list({incident.id: incident for incident in read_journal(folder, name=RUN_INCIDENTS)}.values())


def close_orphans(
    home: Path,
    now: float,
    notify: Callable[[Incident], None],
    adopt: Callable[[Incident], None] = lambda _: None,
) -> list[Incident]:
    """Resolve the incidents that agents left open when they died.

    `notify` receives each resolved incident, and the end is recorded in the folder of the incident's run.
    If one of the incident's hosts has no folder in `home`, `adopt` receives the incident instead. The agent
    of this host might have taken over and reported the end, and a second message could contradict the first
    message. An incident ends at the time of the last report of its agent. The outcome of these runs is
    unknown, because the agent or its host was killed, or a tail was stopped. Incidents about a run's end, and
    incidents that stay open after a run's end, are unchanged. `notify` can receive an incident twice if this
    process is killed, or if another agent resolves the same incidents at the same time. The database of past
    notifications prevents a second message.
    """
    closed: list[Incident] = []
    kept = kept_runs(home)
    for folder, info in _left_behind(kept, now):
        if info.end_is_unknown:
            closed += _close(folder, now, info, _of_run(kept, info.key), notify, adopt)
    return closed


def _of_run(kept: _Agents, key: str) -> _Agents:
    """Return the agents of the multi-host run with this key, or an empty list for a run on one host."""
    return [(folder, info) for folder, info in kept if key and info.key == key]


def _resolved(agents: _Agents) -> set[str]:
    """Return the IDs of the incidents that any agent of a multi-host run recorded as resolved."""
    return {
        incident.id
        for folder, _ in agents
        for incident in _of_all_hosts(folder)
        if incident.status == "resolved"
    }


def _close(
    folder: Path,
    now: float,
    info: AgentInfo,
    agents: _Agents,
    notify: Callable[[Incident], None],
    adopt: Callable[[Incident], None],
) -> list[Incident]:
    """Close the incidents of one agent, except incidents that another agent of the run has resolved.

    `agents` are the agents of a multi-host run.
    """
    of_all_hosts = bool(info.key)
    left = [
        msgspec.structs.replace(left_open(orphan, info), updated_at=now)
        for orphan in (_of_all_hosts(folder) if of_all_hosts else read_incidents(folder))
        if orphan.status == "open" and not orphan.is_final_incident
    ]
    if left and of_all_hosts:
        over = _resolved(agents)
        left = [orphan for orphan in left if orphan.id not in over]
    if not left:
        return []
    closed: list[Incident] = list(left) if of_all_hosts else []
    if not of_all_hosts:
        episodes = Episodes(closed.append, read_journal(folder))
        for orphan in left:
            episodes.take(orphan)
        episodes.flush()
    here = {agent.host_in_run for _, agent in agents}
    try:
        with open_to_append(folder / (RUN_INCIDENTS if of_all_hosts else "incidents.jsonl")) as journal:
            for incident in closed:  # notify first, because recorded incidents are not resent
                (notify if not of_all_hosts or here.issuperset(incident.hosts) else adopt)(incident)
            journal.write(b"\n" + b"".join(msgspec.json.encode(orphan) + b"\n" for orphan in left))
    except OSError:
        return []  # an agent that can write to the journal reports the incidents later
    return closed
