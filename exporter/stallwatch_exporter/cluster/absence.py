"""Find hosts of a run that do not report, and name these hosts as the cause of failures on other hosts.

A lost host cannot report anything. The other hosts report only that they lost a connection or that not all
processes arrived.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from stallwatch_exporter.cluster.known_agent import LATE_SECONDS, KnownAgent
from stallwatch_exporter.cluster.wire import BEAT_SECONDS
from stallwatch_exporter.incident import HOST_GONE, HOST_MISSING, Incident
from stallwatch_rules.messages import Message, Text, message
from stallwatch_rules.records import Primary
from stallwatch_rules.text.digest import fold_names

#: Number of seconds after an agent's last post at which the next post is overdue while the run makes
#: progress.
OVERDUE_SECONDS = BEAT_SECONDS + LATE_SECONDS
_CONFIDENCE = 0.8


class Absence(msgspec.Struct, frozen=True):
    """The hosts of a run that do not report."""

    gone: Mapping[str, float] = {}  #: Unix time of the last report, by host that no longer reports
    missing: int = 0  #: number of hosts that have never reported
    known: Sequence[str] = ()  #: hosts that have reported
    expected: int = 0  #: number of hosts of the run, or 0 if unknown
    is_awaited: bool = False  #: True if the next report of a host that might be gone is not overdue yet


def absence(
    agents: Iterable[KnownAgent],
    absent: Mapping[str, float],
    expected: int,
    newest_at: float,
    now: float,
    wall: float,
) -> Absence:
    """Return the hosts that do not report.

    `absent` contains the times at which other agents first reported hosts that have never posted to this
    coordinator. `expected` is the number of agents of the run, or 0 if unknown. `newest_at` is the time of
    the last change to an incident. `now` and `wall` are the monotonic time and the Unix time.
    """
    agents = list(agents)
    of_host: dict[str, list[KnownAgent]] = {}
    for agent in agents:
        of_host.setdefault(agent.host, []).append(agent)
    gone: dict[str, float] = {}
    is_awaited = False
    for host, each in of_host.items():
        if all(agent.is_overdue(now) for agent in each):
            gone[host] = wall - now + max(agent.at for agent in each)
        elif all(agent.report.ending is None and agent.at < newest_at for agent in each):
            is_awaited = True
    for host, since in absent.items():
        if now - since > OVERDUE_SECONDS:
            gone[host] = wall - now + since
        else:
            is_awaited = True
    # Under srun, a host can have one agent for each rank.
    of_one = max(Counter(agent.report.host_id for agent in agents).values(), default=1)
    known = [*of_host, *absent]
    hosts = max(len(known), math.ceil(expected / of_one))
    return Absence(gone, hosts - len(known), known, hosts, is_awaited)


def cause_of(incident: Incident, missed: Absence) -> Primary | None:
    """If a failure shows only that peers were lost, return the gone or missing hosts as the cause.

    Hosts that have never reported are the cause only if the run has completed no step, because a host on
    which Stallwatch does not run never reports.
    """
    if not incident.of_peers or incident.primary is None or incident.severity != "critical":
        return None
    if missed.gone:
        return host_gone(missed.gone, incident.primary)
    if missed.missing and incident.step is None:
        return host_missing(missed, incident.primary)
    return None


def host_gone(hosts: Mapping[str, float], symptom: Primary | None = None) -> Primary:
    """Return the ``host-gone`` cause for hosts that no longer report.

    `hosts` maps each of these hosts to the Unix time of its last report. `symptom` is the failure that the
    other hosts report. If `symptom` is ``None``, the other hosts continue.
    """
    about: dict[str, str | int] = {"hosts": fold_names(hosts), "count": len(hosts)}
    why = message(
        f"diagnosis.host-gone-{'others-continue' if symptom is None else 'others-failed'}",
        time=time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(min(hosts.values()))),
        symptom=symptom.title if symptom is not None else "",
        **about,
    )
    advice = ("check", "unwatched") if symptom is None else ("check", "ended", "restart")
    fixes: list[Text] = [message(f"diagnosis.host-gone-{each}", **about) for each in advice]
    host = next(iter(hosts)) if len(hosts) == 1 else ""
    return _primary(HOST_GONE, message("diagnosis.host-gone", **about), why, fixes, symptom, host)


def host_missing(missed: Absence, symptom: Primary | None = None) -> Primary:
    """Return the ``host-missing`` cause for hosts that have never reported.

    `symptom` is the failure that the other hosts report. If `symptom` is ``None``, the other hosts wait.
    """
    about = {"missing": missed.missing, "expected": missed.expected}
    why = message(
        f"diagnosis.host-missing-{'others-wait' if symptom is None else 'others-failed'}",
        hosts=fold_names(missed.known),
        count=len(missed.known),
        symptom=symptom.title if symptom is not None else "",
        **about,
    )
    checks = ("check", "count", "join")
    fixes: list[Text] = [message(f"diagnosis.host-missing-{check}", **about) for check in checks]
    # If Stallwatch does not run on the missing hosts, the failure has a different cause.
    fixes += symptom.fixes if symptom is not None else ()
    return _primary(HOST_MISSING, message("diagnosis.host-missing", **about), why, fixes, symptom)


def _primary(
    rule: str, title: Message, why: Message, fixes: list[Text], symptom: Primary | None, host: str = ""
) -> Primary:
    return Primary(
        rule=rule,
        title=title,
        role="cause",
        harm="fatal" if symptom is not None else "by-progress",
        confidence=_CONFIDENCE,
        rank=None,
        file="",
        line=0,
        time=None,
        step=symptom.step if symptom is not None else None,
        evidence=list(symptom.evidence) if symptom is not None else [],
        captures={},
        why=why,
        fixes=fixes,
        host=host,
    )
