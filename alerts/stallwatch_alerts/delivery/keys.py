"""Under which key it is noted that somebody was told of an incident."""

from __future__ import annotations

from stallwatch_exporter.incident import Incident


def told_key(incident: Incident, stage: str = "") -> str:
    """Of this stage of the incident, by default the present one.

    The time is part of it: a run's name, and with it all ids, may come again once the old run was pruned.
    """
    return f"{incident.id}/{incident.opened_at:.0f}/{stage or incident.stage}"


def opening_keys(incident: Incident) -> tuple[str, str]:
    """Stages whose message says that the incident began."""
    return told_key(incident, "open"), told_key(incident, "worse")


_PLANNED = "/planned"


def escalated_key(key: str) -> str:
    """Under which it is noted that a chat was called because nobody had acknowledged the incident."""
    return f"{key}/escalated"


def planned_key(key: str) -> str:
    """Under which it is noted that a message is kept for later, while another may still tell it first."""
    return f"{key}{_PLANNED}"


def key_of_planned(key: str) -> str:
    """The key behind a ``planned_key``; "" where it is none."""
    return key.removesuffix(_PLANNED) if key.endswith(_PLANNED) else ""
