"""Incidents of agents that died: the next agent of this host reports and resolves them."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import msgspec

from stallwatch_exporter.incident import Incident
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


def report_unsent(home: Path, now: float, tell: Callable[[Incident], None]) -> list[tuple[Path, AgentInfo]]:
    """Report again what agents recorded that were killed before their messages were stored.

    Between an incident's record and its message lies a moment: `tell` gets what changed shortly before such
    an agent was gone, and what it left open. Who was notified is noted beside the messages. The folders of
    these runs are returned, for `mark_reported` once all is stored.
    """
    found: list[tuple[Path, AgentInfo]] = []
    for folder, info in _left_behind(home, now):
        until = reported_until(info, now)
        if until == math.inf:
            continue
        if info.key:
            for one in _of_all_hosts(folder):
                if one.status == "open" or one.updated_at > until:
                    tell(one)
        else:
            Episodes(tell, read_journal(folder), until)
        found.append((folder, info))
    return found


def _left_behind(home: Path, now: float) -> list[tuple[Path, AgentInfo]]:
    """Return the runs whose agent is gone. Of a run over hosts, others have taken over what it merged."""
    kept = kept_runs(home)
    watched = {info.key for _, info in kept if info.key and agent_alive(info, now)}
    return [(folder, info) for folder, info in kept if info.key not in watched and _is_gone(info, now)]


def _is_gone(info: AgentInfo, now: float) -> bool:
    # Whoever starts it anew in its folder needs a moment, and so does one that is about to leave.
    return abs(now - info.updated_at) > _FRESH_SECONDS and not agent_alive(info, now)


def _of_all_hosts(folder: Path) -> list[Incident]:
    """Return the last state of each incident that this agent merged from those of all hosts."""
    return list({one.id: one for one in read_journal(folder, name=RUN_INCIDENTS)}.values())


def close_orphans(home: Path, now: float, tell: Callable[[Incident], None]) -> list[Incident]:
    """What agents that are gone left open, resolved as of now: reported, and kept in their runs' folders.

    What became of those runs is not known: the agent was killed, or its host was. A run's end, and what
    it left unmended, are none of them. `tell` may hear of the same one again, where we are killed in between
    or another agent looks at the same moment: who is notified of it is noted beside the messages.
    """
    closed: list[Incident] = []
    for folder, info in _left_behind(home, now):
        if info.ended_at is None:
            closed += _close(folder, now, tell, of_all_hosts=bool(info.key))
    return closed


def _close(
    folder: Path, now: float, tell: Callable[[Incident], None], *, of_all_hosts: bool
) -> list[Incident]:
    left = [
        msgspec.structs.replace(one, status="resolved", resolution="unknown", resolved_at=now, updated_at=now)
        for one in (_of_all_hosts(folder) if of_all_hosts else read_incidents(folder))
        if one.status == "open" and not one.is_last_word
    ]
    if not left:
        return []
    closed: list[Incident] = list(left) if of_all_hosts else []
    if not of_all_hosts:
        episodes = Episodes(closed.append, read_journal(folder))
        for one in left:
            episodes.take(one)
        episodes.flush()
    try:
        with open_to_append(folder / (RUN_INCIDENTS if of_all_hosts else "incidents.jsonl")) as journal:
            for incident in closed:  # people first: what is in the folder is not sent again
                tell(incident)
            journal.write(b"\n" + b"".join(msgspec.json.encode(one) + b"\n" for one in left))
    except OSError:
        return []  # whoever can keep it reports it
    return closed
