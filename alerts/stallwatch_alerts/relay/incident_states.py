"""Join alerts with their incidents in the database.

An alert identifies its incident by the label ``rule``, or by the label ``incident`` with the incident's
kind. The alert that a host is gone belongs to the stall during which this host sent no stacks. All alerts
of one incident form one `IncidentState`. The agent records its notifications to chats under the same key as
the relay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import cast, get_args

from stallwatch_alerts.notice import stage_key
from stallwatch_alerts.relay.webhook import Alert
from stallwatch_exporter.incident import RANKS, Incident, Severity

WATCHDOG = "StallwatchWatchdog"
TEST = "StallwatchTest"
HOST_GONE = "StallwatchHostGone"
_NEVER_SENT = "none"  # severity of alerts that only prove that alerting works, such as the watchdog
_PRESUMED: Severity = "warning"
_NAME = 200
# Maximum number of seconds between an incident and its alert, because of scraping, evaluation, and clock
# differences.
_APART = 120.0

#: A function that takes a run's name and returns the run's incidents, newest first.
Lookup = Callable[[str], Sequence[Incident]]


@dataclass(frozen=True)
class IncidentState:
    """The state that alerts report for one incident, or for an alert without an incident."""

    key: str  #: each chat gets one message for each key
    subject: Incident  #: the incident, or a stand-in made from the alert; compared with routes and silences
    alert: Alert
    incident: Incident | None = None

    @property
    def run(self) -> str:
        """The name of the run, or "" if the alert belongs to no run."""
        return self.subject.run

    @property
    def severity(self) -> str:
        """The severity: ``critical``, ``warning``, or ``info``, or ``none`` if the state is never sent."""
        return self.subject.severity

    @property
    def unjoined(self) -> bool:
        """True if the alert belongs to an incident that is not in the database yet."""
        claims = {"rule", "incident"} & self.alert.labels.keys()
        return self.incident is None and bool(claims) and self.alert.firing

    @property
    def over(self) -> bool:
        """True if this state reports the end of its incident."""
        return self.subject.status == "resolved"

    @property
    def rank(self) -> tuple[bool, int]:
        """The sort key that puts the worst state first."""
        return self.subject.is_settled, -RANKS.get(self.severity, -1)


def incident_states(alerts: Iterable[Alert], lookup: Lookup) -> list[IncidentState]:
    """Return one state for each incident and for each alert without an incident, the worst state first.

    The watchdog alert is omitted.
    """
    known: dict[str, Sequence[Incident]] = {}
    found: dict[str, IncidentState] = {}
    for alert in alerts:
        if alert.name == WATCHDOG:
            continue
        run = alert.labels.get("run", "")
        if run and run not in known:
            known[run] = lookup(run)
        state = _state(alert, run, known.get(run, ()))
        if state is not None:
            found.setdefault(state.key, state)
    return sorted(found.values(), key=lambda state: state.rank)


def doubt(alert: Alert) -> str:
    """Return a warning that the alert's severity is missing or unknown, or "" if the severity is known."""
    severity = alert.labels.get("severity", "")
    if severity in RANKS or severity == _NEVER_SENT:
        return ""
    name = alert.name[:_NAME] or "an alert without a name"
    problem = f"severity {severity[:40]!r} is unknown" if severity else "the alert has no severity"
    return f"{name}: {problem}; using {_PRESUMED} (known severities are {', '.join(get_args(Severity))})"


def _state(alert: Alert, run: str, incidents: Sequence[Incident]) -> IncidentState | None:
    incident = _incident_of(alert, incidents)
    if incident is None:
        made = _made(alert, run)
        return IncidentState(stage_key(made), made, alert)
    if not alert.firing and incident.status == "open":
        return None  # the alert ended because the run's metrics ended
    return IncidentState(stage_key(incident), incident, alert, incident)


def _made(alert: Alert, run: str) -> Incident:
    """Return a stand-in for the missing incident of an alert, so that the alert can be routed and counted."""
    return Incident(
        id=f"alert/{(alert.fingerprint or f'{alert.name}/{run}')[:_NAME]}/{alert.starts_at[:40]}",
        run=run,
        kind="finding",
        rule=alert.labels.get("rule") or alert.name,
        severity=_PRESUMED if doubt(alert) else cast("Severity", alert.labels["severity"]),
        status="open" if alert.firing else "resolved",
        episode=1,
        opened_at=alert.started,
        updated_at=alert.started,
    )


def _incident_of(alert: Alert, incidents: Sequence[Incident]) -> Incident | None:
    """Return the newest incident that the alert is about.

    If that incident was merged, return the merged incident.
    """
    rule, kind = alert.labels.get("rule"), alert.labels.get("incident")
    merged = {alias for incident in incidents for alias in incident.aliases}
    incidents = [incident for incident in incidents if incident.id not in merged]
    if alert.name == HOST_GONE:
        host = alert.labels.get("host")
        about = [
            incident
            for incident in incidents
            if host in incident.gone_hosts or (incident.stacks and host in incident.stacks.silent)
        ]
    elif rule:
        about = [incident for incident in incidents if incident.concerns(rule=rule)]
    elif kind:
        about = [incident for incident in incidents if incident.concerns(kind=kind)]
    else:
        return None
    if alert.firing:
        about = [incident for incident in about if not _is_past(incident, alert)]
    unresolved = [incident for incident in about if incident.status == "open"]
    wanted = unresolved if alert.firing and unresolved else about
    return wanted[0] if wanted else None


def _is_past(incident: Incident, alert: Alert) -> bool:
    """Return whether the incident ended long before the alert began.

    The alert then belongs to a later incident.
    """
    return incident.resolved_at is not None and incident.resolved_at < alert.started - _APART
