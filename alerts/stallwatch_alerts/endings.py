"""An end has nothing after it: it is kept as closed, and told as news."""

from __future__ import annotations

import msgspec

from stallwatch_exporter.incident import Incident


def keeping(incident: Incident) -> Incident:
    """The incident as it is stored. Nobody will ever resolve the end of a run; open, it would stay so."""
    if incident.kind != "ended" or incident.status == "resolved":
        return incident
    return msgspec.structs.replace(
        incident, status="resolved", resolution="run-failed", resolved_at=incident.opened_at
    )


def telling(incident: Incident) -> Incident:
    """The stored incident as the agent told it."""
    if incident.kind != "ended" or incident.status == "open":
        return incident
    return msgspec.structs.replace(incident, status="open", resolution="", resolved_at=None)
