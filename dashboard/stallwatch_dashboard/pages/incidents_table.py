"""Incidents as a table, on the page of one run and on that of all."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import tzinfo

import pandas as pd

from stallwatch_dashboard import formats
from stallwatch_dashboard.safetext import cell
from stallwatch_dashboard.verdict import rule_name
from stallwatch_dashboard.words import Say
from stallwatch_exporter.incident import Incident

_ICONS = {"open": "■", "resolved": "✔"}


def incident_table(
    incidents: Sequence[Incident], now: float, zone: tzinfo | None, say: Say, *, with_run: bool = True
) -> pd.DataFrame:
    """A row an incident, in their order."""
    columns = {
        say("state"): [_state(i, say) for i in incidents],
        say("severity"): [say(f"severity_{i.severity}") for i in incidents],
        say("run"): [cell(i.run) for i in incidents],
        say("rule"): [cell(rule_name(i.rule, say)) for i in incidents],
        say("started"): [formats.clock(i.opened_at, zone, now) for i in incidents],
        say("duration"): [formats.seconds(_lasted(i, now)) for i in incidents],
        say("step"): [formats.integer(i.step) for i in incidents],
        say("rank_column"): [formats.integer(i.rank) for i in incidents],
    }
    if not with_run:
        del columns[say("run")]
    return pd.DataFrame(columns)


def _lasted(incident: Incident, now: float) -> float | None:
    """Seconds; an end takes no time."""
    return None if incident.kind == "ended" else (incident.resolved_at or now) - incident.opened_at


def _state(incident: Incident, say: Say) -> str:
    """Of what a run left behind, that it did: to call it resolved would be wrong."""
    if incident.outlasted:
        return f"{_ICONS['open']} {say(f'resolution_{incident.resolution}')}"
    return f"{_ICONS[incident.status]} {say(incident.status)}"
