"""The state of a run by the record of its agent."""

from __future__ import annotations

import socket
from typing import Literal

from stallwatch_exporter.runs.runfolder import AgentInfo, State, agent_alive

RunState = Literal[State, "interrupted", "unwatched", "gone", "stale"]
#: States by the kind of the recorded end; any other end is a failure.
ENDINGS: dict[str, Literal["finished", "interrupted", "unwatched"]] = {
    "finished": "finished",
    "interrupted": "interrupted",  # from outside, not a failure, whatever the exit code is
    "time-limit": "interrupted",
    "unknown": "unwatched",  # only the watching ended; the end of the run is unknown
}
#: A running agent writes and answers more often: after a longer silence, the facts about it are outdated.
LATE_SECONDS = 10.0
#: The same if its record is of another host (see ``runfolder.SILENT_SECONDS``), or if Prometheus scrapes it:
#: more than three scrapes at an interval of 30 s.
LATE_INDIRECTLY_SECONDS = 100.0


def state_of(
    info: AgentInfo,
    now: float,
    *,
    alive: bool | None = None,
    seen: float | None = None,
    late: float = LATE_INDIRECTLY_SECONDS,
) -> RunState:
    """Return the state of a run from its agent's record; the record of a silent agent is out of date.

    `alive`: whether the agent is running, if that is known;
    `seen`: the time of its last report, if not in its record;
    `late`: the seconds after which that report of an agent on another host is out of date.
    """
    if info.ended_at is not None:
        if info.ending is not None and info.ending.stopped and info.state != "failed":
            return "interrupted"
        kind = info.ending.kind if info.ending is not None else ""
        return ENDINGS.get(kind, "failed" if info.state == "failed" else "finished")
    if not (agent_alive(info, now) if alive is None else alive):
        return "gone"
    limit = LATE_SECONDS if info.host == socket.gethostname() else late
    return "stale" if now - (info.updated_at if seen is None else seen) > limit else info.state
