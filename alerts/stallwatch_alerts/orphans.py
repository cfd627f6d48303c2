"""Incidents of agents that died: the next agent of this host reports and resolves them."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import msgspec

from stallwatch_exporter.incident import Incident
from stallwatch_exporter.runs.runfolder import (
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
    for folder, info in kept_runs(home):
        until = reported_until(info, now)
        if until < math.inf and _is_gone(info, now):
            Episodes(tell, read_journal(folder), until)
            found.append((folder, info))
    return found


def _is_gone(info: AgentInfo, now: float) -> bool:
    # Whoever starts it anew in its folder needs a moment, and so does one that is about to leave.
    return abs(now - info.updated_at) > _FRESH_SECONDS and not agent_alive(info, now)


def close_orphans(home: Path, now: float, tell: Callable[[Incident], None]) -> list[Incident]:
    """What agents that are gone left open, resolved as of now: reported, and kept in their runs' folders.

    What became of those runs is not known: the agent was killed, or its host was. A run's end, and what
    it left unmended, are none of them. `tell` may hear of the same one again, where we are killed in between
    or another agent looks at the same moment: who is notified of it is noted beside the messages.
    """
    closed: list[Incident] = []
    for folder, info in kept_runs(home):
        if info.ended_at is None and _is_gone(info, now):
            closed += _close(folder, now, tell)
    return closed


def _close(folder: Path, now: float, tell: Callable[[Incident], None]) -> list[Incident]:
    left = [
        msgspec.structs.replace(one, status="resolved", resolution="unknown", resolved_at=now, updated_at=now)
        for one in read_incidents(folder)
        if one.status == "open" and not one.is_last_word
    ]
    if not left:
        return []
    closed: list[Incident] = []
    episodes = Episodes(closed.append, read_journal(folder))
    for one in left:
        episodes.take(one)
    episodes.flush()
    try:
        with open_to_append(folder / "incidents.jsonl") as journal:
            for incident in closed:  # people first: what is in the folder is not sent again
                tell(incident)
            journal.write(b"\n" + b"".join(msgspec.json.encode(one) + b"\n" for one in left))
    except OSError:
        return []  # whoever can keep it reports it
    return closed
