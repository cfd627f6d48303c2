"""Send incidents to chats. Each URL has its own thread, so an unreachable chat does not delay other chats."""

from __future__ import annotations

import time
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

import msgspec

from stallwatch_alerts.delivery.planning import IncidentMessage
from stallwatch_alerts.delivery.queue import DeliveryQueue
from stallwatch_alerts.notice import incident_notice, linked
from stallwatch_alerts.settings import AlertSettings
from stallwatch_exporter.incident import RANKS, Incident

if TYPE_CHECKING:
    from stallwatch_rules.pages.catalogue import Catalogue

_REMEMBERED = 10_000


class ChatSink(DeliveryQueue):
    """A delivery queue for an agent.

    The queue receives every change to an incident. It sends a message when the incident opens and when it is
    resolved. Calls never block and never raise an exception. A warning whose impact depends on the next steps
    is held for `warning_seconds`.
    """

    def __init__(
        self,
        settings: AlertSettings,
        catalogue: Catalogue,
        *,
        warning_seconds: float = 0.0,
        **delivery: Any,
    ) -> None:
        """Create the sink. `delivery` contains options for a `DeliveryQueue`."""
        super().__init__(settings, **delivery)
        self._catalogue = catalogue
        self._sent_stages: OrderedDict[tuple[str, str], None] = OrderedDict()
        # For each open incident, the parts that its last message shows: see `_shape`.
        self._shown: dict[str, tuple[object, ...]] = {}
        self._warning_seconds = warning_seconds
        # Held warnings by incident ID, each with the time when it was first held.
        self._held: dict[str, tuple[float, Incident]] = {}

    def __call__(self, incident: Incident) -> None:
        """Receive a change to an incident. If the change requires a message, queue the message."""
        if self._holds(incident):
            return
        self._held.pop(incident.id, None)
        self._send(incident)

    def alive(self, _problem: str) -> None:
        """Send the warnings that have been held for `warning_seconds`.

        The agent calls this method whenever it checks its run.
        """
        now = time.monotonic()
        for since, incident in list(self._held.values()):
            if now - since >= self._warning_seconds:
                del self._held[incident.id]
                self._send(incident)

    def adopt(self, incident: Incident) -> None:
        """Record that another agent of the run sent the message about this stage of an incident.

        This agent then does not resend the message.
        """
        self._sent_stages[(incident.id, "open")] = None
        self._sent_stages[(incident.id, incident.stage)] = None
        try:
            self.note(self._incident_message(incident))
        except Exception:
            self._lost += 1

    def has_sent(self, incident: str) -> bool:
        """Return whether all due messages about the incident with this ID have been delivered."""
        return incident not in self._held and super().has_sent(incident)

    def _incident_message(self, incident: Incident) -> IncidentMessage:
        page = self._catalogue.pages.get(incident.rule)
        notice = incident_notice(incident, self._settings.language, page)
        notice = linked(notice, page, incident.run, self._settings)
        return IncidentMessage(msgspec.structs.replace(incident), notice, page.family if page else "")

    def _holds(self, incident: Incident) -> bool:
        """Return whether to hold a warning until the next steps of the run show its impact.

        If the run stalls instead, one message can report both the warning and the stall.
        """
        warns = (incident.status, incident.kind, incident.severity) == ("open", "finding", "warning")
        if not warns or not self._warning_seconds or (incident.id, "open") in self._sent_stages:
            return False
        page = self._catalogue.pages.get(incident.rule)
        if page is None or page.harm != "by-progress":
            return False
        since, _ = self._held.get(incident.id, (time.monotonic(), incident))
        self._held[incident.id] = since, msgspec.structs.replace(incident)
        return True

    def _send(self, incident: Incident) -> None:
        try:
            is_new = self._deserves_message(incident)
            if not is_new and not self._changes_message(incident):
                return
            update = self._incident_message(incident)
            if is_new:
                self.put(update)
            else:
                self.amend(update.notice)
        except Exception:
            self._lost += 1

    def close(self, timeout: float) -> bool:
        """Send the queued messages within `timeout` seconds in total. Return whether all of them arrived."""
        for _, incident in self._held.values():
            self._send(incident)
        self._held.clear()
        return super().close(timeout)

    def _changes_message(self, incident: Incident) -> bool:
        """Return whether the cause, history, or stacks of an open incident changed after its last message."""
        if incident.status != "open" or incident.id not in self._shown:
            return False
        before, self._shown[incident.id] = self._shown[incident.id], _shape(incident)
        return before != self._shown[incident.id]

    def _deserves_message(self, incident: Incident) -> bool:
        """Return whether to send a message about the incident's current stage.

        Each stage is sent once. A stage below `min_severity` is sent only if the opening of the incident
        was sent.
        """
        key = (incident.id, incident.stage)
        if key in self._sent_stages:
            return False
        severe = RANKS.get(incident.severity, 0) >= RANKS[self._settings.min_severity]
        if not severe and (incident.id, "open") not in self._sent_stages:
            return False
        self._sent_stages[key] = None
        self._shown.pop(incident.id, None)
        if incident.status == "open":
            self._shown[incident.id] = _shape(incident)
        while len(self._sent_stages) > _REMEMBERED:
            self._sent_stages.popitem(last=False)
        return True


def _shape(incident: Incident) -> tuple[object, ...]:
    """Return the parts of an incident that, if they change, justify an edit of the incident's message.

    These parts do not include durations and counts.
    """
    known = incident.stacks is not None
    return incident.rule, incident.severity, incident.rank, known, len(incident.history)
