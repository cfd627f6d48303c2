"""Define the content of notifications, the channel interface, and the keys that record deliveries."""

from __future__ import annotations

import functools
import hashlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, Protocol

from stallwatch_alerts.messages.compose import Message, render, render_test
from stallwatch_alerts.messages.links import Runbooks, command_for, link_lines, with_links
from stallwatch_exporter.incident import Incident

if TYPE_CHECKING:
    from stallwatch_alerts.settings import AlertSettings
    from stallwatch_rules.pages.page import RulePage

Fact = str | int | None
Level = Literal["failure", "warning", "info", "success"]
#: The emoji to put before a title. Most chats can show emoji.
SIGNS: dict[Level, str] = {"failure": "🔴", "warning": "🟠", "info": "🔵", "success": "🟢"}
_LEVELS: dict[str, Level] = {"critical": "failure", "warning": "warning"}


@dataclass(frozen=True)
class Notice:
    """A notification to send: a message with its level, facts, and delivery key."""

    message: Message
    level: Level
    facts: dict[str, Fact]  #: keys of a generic webhook's JSON body, in addition to title and text
    key: str = ""  #: key of the record that a chat was notified; if the key is empty, nothing is recorded


class Channel(Protocol):
    """A destination of notices, which the ``channels`` package implements."""

    name: str

    def send(self, notice: Notice) -> None:
        """Send the notice, or raise an exception with a message that does not contain secrets.

        The exception can have an attribute ``retry_after``: the wait in seconds that the chat requested, or
        ``None``.
        """

    def has_message(self, incident: str) -> bool:
        """Return whether the channel has sent a message about this open incident and can edit the message."""

    def edit(self, notice: Notice) -> None:
        """Edit the message about the notice's incident. Raise an exception if the edit fails."""


def facts_of(**known: Fact) -> dict[str, Fact]:
    """Return all facts of a notice: the `known` values, and default values for the missing keys."""
    unknown: dict[str, Fact] = {
        "id": "",
        "run": "stallwatch",
        "kind": "",
        "rule": "",
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
    return unknown | known


def incident_notice(
    incident: Incident, language: str, page: RulePage | None, *, ending: bool = True
) -> Notice:
    """Return the notice about an incident that opened or resolved.

    If `ending` is false, the message omits the lines about how the run ended.
    """
    odd = incident.stacks.odd if incident.stacks is not None else ()
    facts = {name: getattr(incident, name) for name in facts_of() if name != "odd_ranks"}
    facts = facts_of(**facts, odd_ranks=",".join(str(rank) for rank in odd))
    message = render(incident, language, page, ending=ending)
    return Notice(message, _level(incident), facts, stage_key(incident))


def _level(incident: Incident) -> Level:
    if incident.status == "resolved":
        if incident.outcome == "crashed":
            return "failure"
        if incident.unwatched or incident.resolution == "unmended":
            return "warning"  # the run is not known to have recovered
        return "info" if incident.outlasted else "success"
    return level_of(incident.severity)


def level_of(severity: str) -> Level:
    """Return the notification level of an open incident or alert with this severity."""
    return _LEVELS.get(severity, "info")


def linked(notice: Notice, page: RulePage | None, run: str, settings: AlertSettings) -> Notice:
    """Return the notice with a link to the rule's page and, if there is a dashboard, to the run's page."""
    runbook = "" if page is None else runbook_of(page, settings)
    lines = link_lines(runbook, run, settings.dashboard_url, settings.language)
    return replace(notice, message=Message(notice.message.title, with_links(notice.message.text, lines)))


def runbook_of(page: RulePage, settings: AlertSettings) -> str:
    """Return the address of a rule's page, or the command that shows the page if it has no address."""
    runbooks = Runbooks(settings.dashboard_url, settings.docs_url)
    return runbooks.rule(page, settings.language) or command_for(page)


def test_notice(language: str) -> Notice:
    """Return a test notice for a channel. The test notice has every key of a real notice."""
    facts = facts_of(id="stallwatch/test/test-message/1", kind="test", rule="test-message")
    return Notice(render_test(language), "info", facts)


# ---------------------------------------------------------------- keys of the delivery records


def stage_key(incident: Incident, stage: str = "") -> str:
    """Return the key under which a notification about a stage of the incident is recorded.

    The default is the incident's current stage. The key includes the opening time, because a new run can have
    the same name and incident IDs as a deleted run.
    """
    return f"{incident.id}/{incident.opened_at:.0f}/{stage or incident.stage}"


def opening_keys(incident: Incident) -> tuple[str, str]:
    """Return the keys of all stages whose messages report the beginning of the incident."""
    return stage_key(incident, "open"), stage_key(incident, "worse")


def escalated_key(key: str) -> str:
    """Return the key that records an escalation.

    A chat receives an escalation if no user acknowledges the incident in time.
    """
    return f"{key}/escalated"


_PLANNED = "/planned"


def planned_key(key: str) -> str:
    """Return the key of a message planned for later. Another process might deliver the message first."""
    return f"{key}{_PLANNED}"


def key_of_planned(key: str) -> str:
    """Return the key that ``planned_key`` converted to `key`, or "" if `key` is not a planned key."""
    return key.removesuffix(_PLANNED) if key.endswith(_PLANNED) else ""


@functools.lru_cache(maxsize=256)
def fingerprint(url: str) -> str:
    """Return the name of a chat in the database: a hash of its URL that is the same on every host.

    The name has 32 hexadecimal digits. The hash is intentionally slow (50 ms per URL), because a password in
    a URL can be weak.
    """
    salt = b"stallwatch chat url"
    return hashlib.scrypt(url.strip().encode(), salt=salt, n=2**14, r=8, p=1, dklen=16).hex()
