"""An end, and what a run left unmended, have nothing after them: kept as closed, and told as news."""

from __future__ import annotations

import msgspec

from stallwatch_exporter.incident import Incident


def keeping(incident: Incident) -> Incident:
    """The incident as it is stored. What nobody will ever resolve would stay open for good."""
    if incident.status == "resolved" or not incident.is_last_word:
        return incident
    if incident.kind == "ended":
        return msgspec.structs.replace(
            incident, status="resolved", resolution="run-failed", resolved_at=incident.updated_at
        )
    return msgspec.structs.replace(incident, status="resolved", resolved_at=incident.updated_at)


def telling(incident: Incident) -> Incident:
    """The stored incident as the agent told it."""
    if incident.status == "open" or not incident.is_last_word:
        return incident
    resolution = "" if incident.kind == "ended" else incident.resolution
    return msgspec.structs.replace(incident, status="open", resolution=resolution, resolved_at=None)
