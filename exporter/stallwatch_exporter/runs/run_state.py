"""Determine the state of a run from the record of its agent."""

from __future__ import annotations

import socket
from contextlib import suppress
from pathlib import Path
from typing import Literal

from stallwatch_exporter.runs.runfolder import AgentInfo, State, agent_alive

RunState = Literal[State, "interrupted", "unwatched", "gone", "stale"]
#: States by the kind of the recorded ending. For any other kind, the recorded state applies.
ENDINGS: dict[str, Literal["finished", "interrupted", "unwatched"]] = {
    "finished": "finished",
    "interrupted": "interrupted",  # ended from outside, which is not a failure, regardless of the exit code
    "time-limit": "interrupted",
    "unknown": "unwatched",  # only the agent ended, so the end of the run is unknown
}
#: The age in seconds at which a record of this host, or a scrape by this dashboard, is out of date.
LATE_SECONDS = 10.0
#: The corresponding limit for a record of another host (see ``runfolder.SILENT_SECONDS``) and for a scrape by
#: Prometheus. It is longer than three scrapes at an interval of 30 s.
LATE_INDIRECTLY_SECONDS = 100.0
#: Maximum number of seconds between two writes of ``agent.json`` by an agent (usually 5 s). If a log copy was
#: modified more than this time after the time in ``agent.json``, the file was copied rather than written by
#: the agent.
_REWRITTEN_SECONDS = 10.0


def state_of(info: AgentInfo, now: float, *, alive: bool | None = None, answers: bool = False) -> RunState:
    """Return the state of a run from its agent's record, or ``stale`` if the agent was silent for too long.

    `alive` specifies whether the agent is running, if this is known. If `answers` is true, the agent's
    metrics are up to date, so the agent is not silent.
    """
    if info.ended_at is not None:
        if info.ending is not None and info.ending.stopped and info.state != "failed":
            return "interrupted"
        kind = info.ending.kind if info.ending is not None else ""
        return ENDINGS.get(kind, "failed" if info.state == "failed" else "finished")
    if not (agent_alive(info, now) if alive is None else alive):
        return "gone"
    limit = LATE_SECONDS if info.host == socket.gethostname() else LATE_INDIRECTLY_SECONDS
    return info.state if answers or now - info.updated_at <= limit else "stale"


def last_sign(info: AgentInfo, folder: Path) -> float:
    """Return the time at which the agent last wrote to its record or to its copies of the output."""
    times = [info.updated_at]
    for copy in (folder / "output.log", *(folder / "ranks").glob("*")):
        with suppress(OSError):
            times.append(copy.stat().st_mtime)
    return max(time for time in times if time <= info.updated_at + _REWRITTEN_SECONDS)
