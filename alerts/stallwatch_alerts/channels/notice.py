"""What a channel delivers: the words for people and the facts for programs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from stallwatch_alerts.delivery.keys import told_key
from stallwatch_alerts.messages import Message, render, render_test
from stallwatch_alerts.messages.links import link_lines, with_links
from stallwatch_alerts.prometheus.links import runbook_of
from stallwatch_exporter.incident import Incident

if TYPE_CHECKING:
    from stallwatch_alerts.settings import AlertSettings
    from stallwatch_rules.pages.page import RulePage

Fact = str | int | None


@dataclass(frozen=True)
class Notice:
    """One message on its way."""

    message: Message
    level: Literal["failure", "warning", "info", "success"]
    facts: dict[str, Fact]  #: keys of the JSON body that generic webhooks get, besides title and text
    key: str = ""  #: under which it is noted who was told; empty where nobody need know


def incident_notice(incident: Incident, language: str, page: RulePage | None) -> Notice:
    """The notice of an incident that opened or resolved."""
    odd = incident.stacks.odd if incident.stacks is not None else ()
    facts: dict[str, Fact] = {
        "id": incident.id,
        "run": incident.run,
        "kind": incident.kind,
        "rule": incident.rule,
        "severity": incident.severity,
        "status": incident.status,
        "outcome": incident.outcome,
        "resolution": incident.resolution,
        "episode": incident.episode,
        "rank": incident.rank,
        "odd_ranks": ",".join(str(rank) for rank in odd),
        "step": incident.step,
        "host": incident.host,
    }
    return Notice(render(incident, language, page), _level(incident), facts, told_key(incident))


def linked(notice: Notice, page: RulePage | None, run: str, settings: AlertSettings) -> Notice:
    """The notice with links to the rule's page and, where there is a dashboard, to the run's."""
    runbook = runbook_of(page) if page is not None else ""
    lines = link_lines(runbook, run, settings.dashboard_url, settings.language)
    return replace(notice, message=Message(notice.message.title, with_links(notice.message.text, lines)))


def test_notice(language: str) -> Notice:
    """A notice with every key of a real one, for trying a channel."""
    facts: dict[str, Fact] = {
        "id": "stallwatch/test/test-message/1",
        "run": "stallwatch",
        "kind": "test",
        "rule": "test-message",
        "severity": "info",
        "status": "open",
        "outcome": None,
        "resolution": "",
        "episode": 1,
        "rank": None,
        "odd_ranks": "",
        "step": None,
        "host": "",
    }
    return Notice(render_test(language), "info", facts)


def _level(incident: Incident) -> Literal["failure", "warning", "info", "success"]:
    if incident.status == "resolved":
        if incident.outcome == "crashed":
            return "failure"
        if incident.unwatched or incident.resolution == "unmended":
            return "warning"  # nothing is known to be well
        return "info" if incident.outlasted else "success"
    return {"critical": "failure", "warning": "warning"}.get(incident.severity, "info")  # type: ignore[return-value]
