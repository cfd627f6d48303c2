"""Incidents of agents that died: nobody would ever resolve them, so the next agent of this host does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

from stallwatch_exporter.incident import Incident
from stallwatch_exporter.runs.runfolder import agent_alive, list_runs, runs_home
from stallwatch_exporter.watching.episodes import Episodes
from stallwatch_exporter.watching.incidents import read_incidents, read_journal

_FRESH_SECONDS = 60.0


def close_orphans(home: Path, now: float, tell: Callable[[Incident], None]) -> list[Incident]:
    """What agents that are gone left open, resolved as of now: reported, and kept in their runs' folders.

    What became of those runs is not known: the agent was killed, or its host was. A run's end, and what
    it left unmended, are none of them. `tell` may hear of the same one again, where we are killed in between
    or another agent looks at the same moment: who is notified of it is noted beside the messages.
    """
    closed: list[Incident] = []
    for info in list_runs(home):
        # Whoever starts it anew in its folder needs a moment.
        fresh = abs(now - info.updated_at) <= _FRESH_SECONDS
        if info.ended_at is None and not fresh and not agent_alive(info, now):
            closed += _close(runs_home(home) / info.run, now, tell)
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
        with (folder / "incidents.jsonl").open("ab") as journal:
            for incident in closed:  # people first: what is in the folder is not sent again
                tell(incident)
            journal.write(b"\n" + b"".join(msgspec.json.encode(one) + b"\n" for one in left))
    except OSError:
        return []  # whoever can keep it reports it
    return closed
