"""What goes into the outbox, what is taken out of it for a try, and what is told of it afterwards."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from stallwatch_alerts.channels.notice import Notice
from stallwatch_alerts.delivery.grouping import Group


@dataclass(frozen=True)
class Draft:
    """A message to be kept, with what it tells its chat."""

    channel: str  #: the chat's fingerprint
    name: str  #: its URL, masked
    run: str
    notice: Notice
    keys: tuple[str, ...]
    about: str = ""  #: the incident's id
    not_before: float = 0.0  #: when it may leave
    escalation: bool = False  #: withdrawn where somebody acknowledges the incident, or it resolves


@dataclass(frozen=True)
class Batch:
    """Messages that were claimed for one try, the oldest first."""

    claim: str
    ids: tuple[int, ...]
    groups: tuple[Group, ...]
    told: tuple[tuple[str, ...], ...]  #: the keys of each
    attempts: int  #: tries of the first one that failed before
    created_at: float  #: of the oldest, in steady time
    expired: int = 0  #: messages that were given up, of which the chat does not know yet
    escalates: str = ""  #: the incident's id, where it is an escalation
    deferred: frozenset[int] = frozenset()  #: the ids of those that were kept for a later time from the start

    @property
    def keys(self) -> tuple[str, ...]:
        """Of all of them."""
        return tuple(key for keys in self.told for key in keys)

    def only(self, ids: Collection[int]) -> Batch:
        """These of them."""
        kept = [at for at, id_ in enumerate(self.ids) if id_ in ids]
        return replace(
            self,
            ids=tuple(self.ids[at] for at in kept),
            groups=tuple(self.groups[at] for at in kept),
            told=tuple(self.told[at] for at in kept),
        )


@dataclass(frozen=True)
class Delivery:
    """What became of a message, for the log of deliveries."""

    name: str
    run: str
    title: str
    state: str
    attempts: int
    created_at: float
    sent_at: float | None
    reason: str
    channel: str = ""  #: the chat's fingerprint
    not_before: float = 0.0  #: when it may leave: quiet hours, escalations
    escalation: bool = False
