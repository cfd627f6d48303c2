"""One message for a group of stories: the worst one whole, the others by their titles, and links."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from stallwatch_alerts.messages.compose import Message, render_alert
from stallwatch_alerts.messages.links import TEXT_LIMIT, link_lines, runbook_of
from stallwatch_alerts.neutral import shorten
from stallwatch_alerts.notice import Fact, Notice, incident_notice, test_notice
from stallwatch_alerts.relay.joining import TEST, Story
from stallwatch_rules.locale import say

if TYPE_CHECKING:
    from stallwatch_rules.pages.catalogue import Catalogue

_TITLE_LIMIT = 200
_OTHERS = 10
_WEB = ("https://", "http://")
_LEVELS: dict[str, Literal["failure", "warning"]] = {"critical": "failure", "warning": "warning"}


class Composer:
    """Writes messages in one language, with links to rule pages and to the dashboard at `dashboard_url`."""

    def __init__(self, catalogue: Catalogue, language: str, dashboard_url: str = "") -> None:
        self._catalogue = catalogue
        self._language = language
        self._dashboard_url = dashboard_url

    def __call__(self, group: Sequence[Story]) -> Notice:
        """The message of a group that is not empty, the worst story first."""
        first, *others = group
        notice = self._notice(first)
        links = self._links(first)
        if not others:
            return _with_text(notice, notice.message.title, notice.message.text, links)
        title = say("alerts.and-others", self._language, title=notice.message.title, count=len(others))
        lines = [f"- {self._notice(story).message.title}" for story in others[:_OTHERS]]
        if len(others) > _OTHERS:
            lines.append(say("alerts.further", self._language, count=len(others) - _OTHERS))
        text = "\n".join([say("alerts.also", self._language), *lines, "", notice.message.text])
        return _with_text(notice, shorten(title, _TITLE_LIMIT), text, links)

    def _notice(self, story: Story) -> Notice:
        if story.incident is not None:
            page = self._catalogue.pages.get(story.incident.rule)
            return incident_notice(story.incident, self._language, page)
        if story.alert.name == TEST:
            test = test_notice(self._language)
            return replace(test, facts={**test.facts, "run": story.run, "id": story.key})
        return _alert_notice(story, self._language)

    def _links(self, story: Story) -> str:
        """Return links of ours, or from the rule files that the user loaded: never from a log."""
        page = self._catalogue.pages.get(story.incident.rule) if story.incident is not None else None
        runbook = runbook_of(page) if page is not None else story.alert.annotations.get("runbook_url", "")
        if not runbook.startswith(_WEB) or any(char.isspace() for char in runbook):
            runbook = ""
        return link_lines(runbook, story.run, self._dashboard_url, self._language)


def _with_text(notice: Notice, title: str, text: str, links: str) -> Notice:
    """The links are never what is cut off."""
    room = TEXT_LIMIT - len(links) - 2 if links else TEXT_LIMIT
    whole = f"{shorten(text, room)}\n\n{links}" if links else shorten(text, room)
    return replace(notice, message=Message(title, whole))


def _alert_notice(story: Story, language: str) -> Notice:
    alert, over = story.alert, story.over
    facts: dict[str, Fact] = {
        "id": story.subject.id,
        "run": story.run,
        "kind": "alert",
        "rule": alert.labels.get("rule") or alert.name,
        "severity": story.severity,
        "status": "resolved" if over else "open",
        "outcome": None,
        "episode": 1,
        "rank": int(rank) if (rank := alert.labels.get("rank", "")).isdecimal() else None,
        "step": None,
        "host": alert.labels.get("instance", ""),
    }
    message = render_alert(alert.name, alert.labels, alert.annotations, over=over, language=language)
    return Notice(message, "success" if over else _LEVELS.get(story.severity, "info"), facts)
