"""Under which key it is noted that somebody was told of an incident."""

from __future__ import annotations

from stallwatch_exporter.incident import Incident, Status


def told_key(incident: Incident, status: Status | None = None) -> str:
    """Of this status of the incident, by default the present one.

    The time is part of it: a run's name, and with it all ids, may come again once the old run was pruned.
    """
    return f"{incident.id}/{incident.opened_at:.0f}/{status or incident.status}"
