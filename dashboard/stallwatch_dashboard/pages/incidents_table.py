"""Incidents as a table, on the page of one run and on that of all."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import tzinfo

import pandas as pd

from stallwatch_dashboard import formats
from stallwatch_dashboard.data.overview import began, lasted
from stallwatch_dashboard.safetext import cell
from stallwatch_dashboard.verdict import in_state, rule_name
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
        say("run_column"): [cell(i.run) for i in incidents],
        say("rule"): [cell(rule_name(i.rule, say, i.exception)) for i in incidents],
        say("started"): [formats.clock(began(i), zone, now) for i in incidents],
        say("duration"): [formats.seconds(lasted(i, now)) for i in incidents],
        say("step"): [formats.integer(i.step) for i in incidents],
        say("rank_column"): [formats.integer(i.rank) for i in incidents],
    }
    if not with_run:
        del columns[say("run_column")]
    return pd.DataFrame(columns)


def _state(incident: Incident, say: Say) -> str:
    icon = "open" if incident.outlasted or incident.unwatched else incident.status
    return f"{_ICONS[icon]} {in_state(incident, say)}"
