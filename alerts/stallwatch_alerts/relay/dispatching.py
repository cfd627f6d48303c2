"""Which chats hear of which stories, and when: as the agents' own way decides it, one message for a group.

What is to be told later (quiet hours, escalations) an agent with a spool of its own may have kept as well,
where we cannot see it. So the agent gets the first word: our message waits a little longer, and is withdrawn
where the chat was told meanwhile (see ``notice.planned_key``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import msgspec

from stallwatch_alerts.delivery.planning import Called, Draft, Letter, Planner, Told
from stallwatch_alerts.messages.compose import Message
from stallwatch_alerts.notice import Notice, escalated_key, opening_keys, planned_key
from stallwatch_alerts.relay.joining import TEST, Story
from stallwatch_exporter.incident import RANKS

if TYPE_CHECKING:
    from stallwatch_alerts.relay.composing import Composer
    from stallwatch_alerts.settings import AlertSettings
    from stallwatch_rules.pages.catalogue import Catalogue

AGENT_FIRST_SECONDS = 30.0
_NO_RUN = "-"
_UNWRITTEN = Notice(Message("", ""), "info", {})


@dataclass(frozen=True)
class Tally:
    """How many incidents of a notification were told, and what became of the others."""

    new: int = 0
    held: int = 0  #: until quiet hours are over
    repeated: int = 0
    silenced: int = 0
    untold: int = 0  #: below ``min_severity``, for no chat, or over before anybody heard of it

    def __str__(self) -> str:
        named = (
            (self.new, "new"),
            (self.repeated, "repeated"),
            (self.silenced, "silenced"),
            (self.held, "held until quiet hours are over"),
            (self.untold, "not to be told (min_severity and routes)"),
        )
        return ", ".join(f"{count} {what}" for count, what in named if count) or "nothing to tell"


class Dispatcher:
    """Writes the messages for a notification's stories."""

    def __init__(
        self, settings: AlertSettings, planner: Planner, composer: Composer, catalogue: Catalogue
    ) -> None:
        self._settings = settings
        self._planner = planner
        self._composer = composer
        self._catalogue = catalogue

    def drafts(
        self, found: Sequence[Story], told: Told, called: Called, now: float
    ) -> tuple[list[Draft], Tally]:
        """The messages to keep for these stories, the worst first."""
        heard = self._memory(found, told)
        by_key = {story.key: story for story in found}
        # Alertmanager repeats large groups: only what is news is put into words.
        news = self._planned(found, heard, called, now, lambda _: _UNWRITTEN)
        keys = {draft.notice.key for draft in news}
        planned = self._planned(
            [story for story in found if story.key in keys],
            heard,
            called,
            now,
            lambda story: self._composer([story]),
        )
        at_once: dict[str, list[Draft]] = {}
        later: list[Draft] = []
        for draft in planned:
            story = by_key[draft.notice.key]
            if draft.escalation and story.over:
                calls = (escalated_key(opening_keys(story.subject)[0]),)
                if story.subject.is_settled or heard(draft.channel, calls):
                    continue  # it went on for too short a time to call anybody, or they are called already
                draft = replace(draft, keys=calls)
            if draft.not_before <= now or story.alert.name == TEST:  # whoever tests wants to see it
                at_once.setdefault(draft.channel, []).append(draft)
            else:
                later.append(_later(draft, story))
        drafts = [self._joined(some, by_key) for some in at_once.values()] + later
        return drafts, self._tally(found, drafts, heard, now)

    def _memory(self, found: Sequence[Story], told: Told) -> Told:
        """As `told`, with what was planned, and all that will be asked for fetched at once."""
        told_of = [key for story in found for key in (story.key, *opening_keys(story.subject))]
        plain = [*told_of, *map(escalated_key, told_of)]
        wanted = [*plain, *map(planned_key, plain)]
        fetched = {channel: told(channel, wanted) for channel in self._planner.channels}

        def heard(channel: str, keys: Iterable[str]) -> set[str]:
            known = fetched.get(channel, set())
            return {key for key in keys if key in known or planned_key(key) in known}

        return heard

    def _planned(
        self,
        found: Sequence[Story],
        heard: Told,
        called: Called,
        now: float,
        written: Callable[[Story], Notice],
    ) -> list[Draft]:
        letters = [letter for story in found for letter in self._letters(story, written(story))]
        return self._planner.drafts(letters, heard, called, now)

    def _letters(self, story: Story, notice: Notice) -> list[Letter]:
        notice = replace(notice, key=story.key)
        subject = story.subject
        page = self._catalogue.pages.get(subject.rule)
        family = page.family if page is not None else ""
        letters = []
        if story.over:  # for those who heard of its beginning
            letters.append(Letter(msgspec.structs.replace(subject, status="resolved"), notice, family))
        if story.alert.firing and self._is_wanted(story):
            letters.append(Letter(msgspec.structs.replace(subject, status="open"), notice, family))
        return letters

    def _is_wanted(self, story: Story) -> bool:
        least = RANKS[self._settings.min_severity]
        return story.alert.name == TEST or RANKS.get(story.severity, -1) >= least

    def _joined(self, drafts: Sequence[Draft], by_key: dict[str, Story]) -> Draft:
        """One message for all of a chat's that leave at once; in the order of the run's others."""
        group = [by_key[draft.notice.key] for draft in drafts]
        keys = tuple(dict.fromkeys(key for draft in drafts for key in draft.keys))
        notice = self._composer(group)
        return replace(
            drafts[0], run=group[0].run or _NO_RUN, notice=notice, keys=keys, about="", not_before=0.0
        )

    def _tally(self, found: Sequence[Story], drafts: Sequence[Draft], heard: Told, now: float) -> Tally:
        counts = dict.fromkeys(("new", "held", "repeated", "silenced", "untold"), 0)
        at_once = {key for draft in drafts if not draft.not_before for key in draft.keys}
        later = {key for draft in drafts if draft.not_before and not draft.escalation for key in draft.keys}
        channels = self._planner.channels
        for story in found:
            if story.key in at_once:
                counts["new"] += 1
            elif planned_key(story.key) in later:
                counts["held"] += 1
            elif any(heard(channel, [story.key]) for channel in channels):
                counts["repeated"] += 1
            elif not story.over and self._planner.is_silenced(story.subject, now):
                counts["silenced"] += 1
            else:
                counts["untold"] += 1
        return Tally(**counts)


def _later(draft: Draft, story: Story) -> Draft:
    grace = AGENT_FIRST_SECONDS if story.incident is not None else 0.0
    keys = tuple(planned_key(key) for key in draft.keys)
    return replace(draft, run=draft.run or _NO_RUN, keys=keys, not_before=draft.not_before + grace)
