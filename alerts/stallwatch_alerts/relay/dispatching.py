"""Plan the relay's messages: their chats, times, and text. One message covers a group of incidents.

An agent with a separate spool might have stored messages for later, to send them after quiet hours or as
escalations. The relay cannot read these messages, and the agent takes precedence. Therefore, the relay sends
its message shortly after the planned time and withdraws the message if the agent notifies the chat first (see
``notice.planned_key``).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import msgspec

from stallwatch_alerts.delivery.grouping import title_with_count
from stallwatch_alerts.delivery.planning import Draft, Escalated, IncidentMessage, Notified, Planner
from stallwatch_alerts.messages.compose import Message, render_alert
from stallwatch_alerts.messages.links import link_lines, with_links
from stallwatch_alerts.notice import (
    Notice,
    escalated_key,
    facts_of,
    incident_notice,
    level_of,
    opening_keys,
    planned_key,
    runbook_of,
    test_notice,
)
from stallwatch_alerts.relay.incident_states import TEST, IncidentState
from stallwatch_exporter.incident import RANKS

if TYPE_CHECKING:
    from stallwatch_alerts.settings import AlertSettings
    from stallwatch_rules.pages.catalogue import Catalogue

AGENT_FIRST_SECONDS = 30.0
_NO_RUN = "-"
_TITLES = 10
#: Annotations that name a runbook, with their allowed forms. The rule files of Stallwatch contain the second
#: annotation.
_RUNBOOKS = (
    ("runbook_url", re.compile(r"https?://\S+")),
    ("runbook", re.compile(r"stallwatch rules show [\w-]+|docs/[\w/.#-]+")),
)
_UNWRITTEN = Notice(Message("", ""), "info", {})


@dataclass(frozen=True)
class OutcomeCounts:
    """The number of incidents in a notification for each outcome, such as new or silenced."""

    new: int = 0
    held: int = 0  #: deferred until quiet hours end
    repeated: int = 0
    silenced: int = 0
    unwanted: int = 0  #: below ``min_severity``, without a chat, or resolved before any notification

    def __str__(self) -> str:
        named = (
            (self.new, "new"),
            (self.repeated, "repeated"),
            (self.silenced, "silenced"),
            (self.held, "held until quiet hours are over"),
            (self.unwanted, "not sent to any chat (min_severity or routes)"),
        )
        return ", ".join(f"{count} {what}" for count, what in named if count) or "nothing to send"


@dataclass(frozen=True)
class Receipt:
    """The result of processing the alerts in an accepted notification."""

    tally: OutcomeCounts
    doubts: tuple[str, ...] = ()  #: warnings about alerts that were sent
    problems: tuple[str, ...] = ()  #: errors in unreadable alerts, which were not sent


class Dispatcher:
    """Plans the messages about the incidents in a notification."""

    def __init__(self, settings: AlertSettings, planner: Planner, catalogue: Catalogue) -> None:
        self._settings = settings
        self._planner = planner
        self._catalogue = catalogue

    def drafts(
        self, found: Sequence[IncidentState], notified: Notified, escalated: Escalated, now: float
    ) -> tuple[list[Draft], OutcomeCounts]:
        """Return the messages to store for these incident states, worst first, and the outcome counts."""
        known = self._notified_or_planned(found, notified)
        by_key = {state.key: state for state in found}
        # Alertmanager repeats large groups, so only new incident states are rendered.
        news = self._planned(found, known, escalated, now, lambda _: _UNWRITTEN)
        keys = {draft.notice.key for draft in news}
        planned = self._planned(
            [state for state in found if state.key in keys],
            known,
            escalated,
            now,
            lambda state: self._message([state]),
        )
        at_once: dict[str, list[Draft]] = {}
        later: list[Draft] = []
        for draft in planned:
            state = by_key[draft.notice.key]
            if draft.escalation and state.over:
                calls = (escalated_key(opening_keys(state.subject)[0]),)
                if state.subject.is_settled or known(draft.channel, calls):
                    continue  # the incident resolved before its escalation, or is already escalated
                draft = replace(draft, keys=calls)
            if draft.not_before <= now or state.alert.name == TEST:  # a test message ignores quiet hours
                at_once.setdefault(draft.channel, []).append(draft)
            else:
                later.append(_later(draft, state))
        drafts = [self._joined(some, by_key) for some in at_once.values()] + later
        return drafts, self._tally(found, drafts, known, now)

    def _notified_or_planned(self, found: Sequence[IncidentState], notified: Notified) -> Notified:
        """Return a replacement for `notified` that queries the database only once for each chat.

        A key also counts as notified if a message for it is planned.
        """
        stages = [key for state in found for key in (state.key, *opening_keys(state.subject))]
        plain = [*stages, *map(escalated_key, stages)]
        wanted = [*plain, *map(planned_key, plain)]
        fetched = {channel: notified(channel, wanted) for channel in self._planner.channels}

        def known(channel: str, keys: Iterable[str]) -> set[str]:
            found = fetched.get(channel, set())
            return {key for key in keys if key in found or planned_key(key) in found}

        return known

    def _planned(
        self,
        found: Sequence[IncidentState],
        known: Notified,
        escalated: Escalated,
        now: float,
        written: Callable[[IncidentState], Notice],
    ) -> list[Draft]:
        updates = [update for state in found for update in self._incident_messages(state, written(state))]
        return self._planner.drafts(updates, known, escalated, now)

    def _incident_messages(self, state: IncidentState, notice: Notice) -> list[IncidentMessage]:
        notice = replace(notice, key=state.key)
        subject = state.subject
        page = self._catalogue.pages.get(subject.rule)
        family = page.family if page is not None else ""
        updates = []
        if state.over:  # send the end only to chats that were notified of the incident's beginning
            updates.append(IncidentMessage(subject, notice, family))
        if state.alert.firing and self._is_wanted(state):
            updates.append(IncidentMessage(msgspec.structs.replace(subject, status="open"), notice, family))
        return updates

    def _is_wanted(self, state: IncidentState) -> bool:
        least = RANKS[self._settings.min_severity]
        return state.alert.name == TEST or RANKS.get(state.severity, -1) >= least

    def _message(self, group: Sequence[IncidentState]) -> Notice:
        """Return a message that shows the worst incident in full and the titles of the other incidents."""
        first, *others = group
        notice, language = self._notice(first), self._settings.language
        title, text = notice.message.title, notice.message.text
        if others:
            titles = [self._notice(state).message.title for state in others[:_TITLES]]
            title, listed = title_with_count(title, titles, len(others), language)
            text = f"{listed}\n\n{text}"
        return replace(notice, message=Message(title, with_links(text, self._links(first))))

    def _notice(self, state: IncidentState) -> Notice:
        language = self._settings.language
        if state.incident is not None:
            page = self._catalogue.pages.get(state.incident.rule)
            return incident_notice(state.incident, language, page)
        if state.alert.name == TEST:
            test = test_notice(language)
            return replace(test, facts={**test.facts, "run": state.run, "id": state.key})
        return _alert_notice(state, language)

    def _links(self, state: IncidentState) -> str:
        """Return the links at the end of a message.

        Addresses come only from the configuration and rule files, never from a log.
        """
        page = self._catalogue.pages.get(state.incident.rule) if state.incident is not None else None
        if page is not None:
            runbook = runbook_of(page, self._settings)
        else:
            given = ((form, state.alert.annotations.get(name, "")) for name, form in _RUNBOOKS)
            runbook = next((text for form, text in given if form.fullmatch(text)), "")
        return link_lines(runbook, state.run, self._settings.dashboard_url, self._settings.language)

    def _joined(self, drafts: Sequence[Draft], by_key: dict[str, IncidentState]) -> Draft:
        """Return one draft that joins all due drafts for a chat."""
        group = [by_key[draft.notice.key] for draft in drafts]
        keys = tuple(dict.fromkeys(key for draft in drafts for key in draft.keys))
        notice = self._message(group)
        return replace(
            drafts[0], run=group[0].run or _NO_RUN, notice=notice, keys=keys, about="", not_before=0.0
        )

    def _tally(
        self, found: Sequence[IncidentState], drafts: Sequence[Draft], known: Notified, now: float
    ) -> OutcomeCounts:
        counts = dict.fromkeys(("new", "held", "repeated", "silenced", "unwanted"), 0)
        at_once = {key for draft in drafts if not draft.not_before for key in draft.keys}
        later = {key for draft in drafts if draft.not_before and not draft.escalation for key in draft.keys}
        channels = self._planner.channels
        for state in found:
            if state.key in at_once:
                counts["new"] += 1
            elif planned_key(state.key) in later:
                counts["held"] += 1
            elif any(known(channel, [state.key]) for channel in channels):
                counts["repeated"] += 1
            elif not state.over and self._planner.is_silenced(state.subject, now):
                counts["silenced"] += 1
            else:
                counts["unwanted"] += 1
        return OutcomeCounts(**counts)


def _later(draft: Draft, state: IncidentState) -> Draft:
    grace = AGENT_FIRST_SECONDS if state.incident is not None else 0.0
    keys = tuple(planned_key(key) for key in draft.keys)
    return replace(draft, run=draft.run or _NO_RUN, keys=keys, not_before=draft.not_before + grace)


def _alert_notice(state: IncidentState, language: str) -> Notice:
    alert, over = state.alert, state.over
    facts = facts_of(
        id=state.subject.id,
        run=state.run,
        kind="alert",
        rule=state.subject.rule,
        severity=state.severity,
        status=state.subject.status,
        rank=int(rank) if (rank := alert.labels.get("rank", "")).isdecimal() else None,
        host=alert.labels.get("instance", ""),
    )
    message = render_alert(alert.name, alert.labels, alert.annotations, over=over, language=language)
    return Notice(message, "success" if over else level_of(state.severity), facts)
