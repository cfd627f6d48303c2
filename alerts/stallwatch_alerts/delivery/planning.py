"""Plan the messages that each chat receives about an incident.

The plan depends on routes, silences, escalations, and earlier notifications.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from stallwatch_alerts.masking import mask_url
from stallwatch_alerts.messages.compose import Message
from stallwatch_alerts.notice import Notice, escalated_key, fingerprint, opening_keys
from stallwatch_alerts.routing import RoutedChat, routed_chats
from stallwatch_alerts.settings import AlertSettings
from stallwatch_exporter.incident import Incident
from stallwatch_rules.locale import say

if TYPE_CHECKING:
    from stallwatch_alerts.people import OperatorActions, Silence

#: A function that takes a chat and notification keys, and returns the keys that the chat was notified of.
Notified = Callable[[str, Iterable[str]], set[str]]
#: A function that takes an incident's ID and returns the chats that received the escalation.
Escalated = Callable[[str], set[str]]
_SILENCES_SECONDS = 10.0


@dataclass(frozen=True)
class IncidentMessage:
    """An incident update with its message text."""

    incident: Incident
    notice: Notice
    family: str = ""  #: the family of the rule, from the rule's page


@dataclass(frozen=True)
class Draft:
    """A message to store, with the notification keys that it covers."""

    channel: str  #: the chat's fingerprint
    name: str  #: the chat's masked URL
    run: str
    notice: Notice
    keys: tuple[str, ...]
    about: str = ""  #: the incident's ID
    not_before: float = 0.0  #: the earliest time to send, or 0 if the message is not deferred

    #: True if the message is withdrawn after the incident is acknowledged or resolved.
    escalation: bool = False


class Planner:
    """Plans messages according to the settings and to the users' silences and acknowledgements.

    The silences are read regularly, because users can add them at any time. All times are wall-clock times,
    because quiet hours and silences end at wall-clock times.
    """

    def __init__(
        self,
        settings: AlertSettings,
        people: Callable[[], OperatorActions] | None = None,
        tick: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._open_people = people
        self._people: OperatorActions | None = None
        self._silences: list[Silence] = []
        self._read_at: float | None = None
        self._tick = tick

    @property
    def channels(self) -> list[str]:
        """The fingerprints of all configured chats."""
        return [fingerprint(url) for url in self._settings.all_urls]

    def is_acknowledged(self, incident: str) -> bool:
        """Return whether a user acknowledged the incident. Database errors are not caught."""
        people = self._get_people()
        return people is not None and people.is_acknowledged(incident)

    def drafts(
        self, updates: Sequence[IncidentMessage], notified: Notified, escalated: Escalated, now: float
    ) -> list[Draft]:
        """Return the messages to store about these incident updates.

        A message about the end of an incident is sent to each chat that was notified of the incident's
        beginning.
        """
        found: list[Draft] = []
        new: set[tuple[str, str]] = set()

        def knows(channel: str, key: str) -> bool:
            return (channel, key) in new or bool(notified(channel, [key]))

        for update in updates:
            for draft in self._drafts_of(update, knows, escalated, now):
                fresh = tuple(key for key in draft.keys if not knows(draft.channel, key))
                if draft.keys and not fresh:
                    continue
                new.update((draft.channel, key) for key in fresh)
                found.append(replace(draft, keys=fresh))
        return found

    def _drafts_of(
        self, update: IncidentMessage, knows: Callable[[str, str], bool], escalated: Escalated, now: float
    ) -> list[Draft]:
        incident, settings = update.incident, self._settings
        about = (incident.run, incident.severity, update.family, incident.rule)
        routed = routed_chats(settings.urls, settings.routes, *about, now)
        drafts: list[Draft] = []
        if incident.status == "resolved":
            by_url = {chat.url: chat for chat in routed if not chat.escalation}
            drafts += [
                self._draft(update, channel, by_url.get(url, RoutedChat(url)))
                for channel, url in zip(self.channels, settings.all_urls, strict=True)
                if any(knows(channel, opening) for opening in opening_keys(incident))
                or channel in escalated(incident.id)
            ]
        # A crash is reported even to chats that were not notified of the incident's beginning. A crash
        # also requires an acknowledgement.
        is_news = not incident.is_settled and not incident.unwatched
        if is_news and not self.is_silenced(incident, now):
            drafts += [self._draft(update, fingerprint(chat.url), chat) for chat in routed]
        return drafts

    def _draft(self, update: IncidentMessage, channel: str, chat: RoutedChat) -> Draft:
        incident, notice = update.incident, update.notice
        key = notice.key
        if chat.escalation:
            notice = self._escalated(update, chat)
            # An incident escalates once. The message about its end has the same key and causes no second
            # escalation.
            key = escalated_key(opening_keys(incident)[0])
        return Draft(
            channel,
            mask_url(chat.url),
            incident.run,
            notice,
            (key,) if key else (),
            incident.id,
            chat.not_before,
            chat.escalation,
        )

    def _escalated(self, update: IncidentMessage, chat: RoutedChat) -> Notice:
        message, language = update.notice.message, self._settings.language
        title = say("alerts.escalated", language, title=message.title, duration=chat.waited)
        # The acknowledgement comes first, because it is the most urgent action and the ends of long texts are
        # truncated.
        text = f"{say('alerts.acknowledge', language, incident=update.incident.id)}\n\n{message.text}"
        return replace(update.notice, message=Message(title, text))

    def is_silenced(self, incident: Incident, now: float) -> bool:
        """Return whether a silence suppresses the message about the beginning of the incident."""
        since = None if self._read_at is None else self._tick() - self._read_at
        if since is None or since >= _SILENCES_SECONDS:
            self._read_at = self._tick()
            try:
                people = self._get_people()
                self._silences = [] if people is None else people.silences(now)
            except Exception:
                pass  # If the database is down, use the last known silences, if any.
        return any(silence.quiets(incident, now) for silence in self._silences)

    def _get_people(self) -> OperatorActions | None:
        if self._people is None and self._open_people is not None:
            self._people = self._open_people()
        return self._people
