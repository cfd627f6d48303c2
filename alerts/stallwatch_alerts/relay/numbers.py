"""The relay's own metrics."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge

OUTCOMES = ("sent", "failed", "given-up")


class RelayNumbers:
    """Counters of what came in and went out, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        notifications = Counter(
            "stallwatch_relay_notifications",
            "Requests of Alertmanager, by what became of them.",
            ("outcome",),
            registry=self.registry,
        )
        messages = Counter(
            "stallwatch_relay_deliveries",
            "Tries to deliver a message to a chat, by what became of them.",
            ("outcome",),
            registry=self.registry,
        )
        self.stored = notifications.labels("stored")
        self.refused = notifications.labels("refused")
        self.failed = notifications.labels("failed")
        self._deliveries = {outcome: messages.labels(outcome) for outcome in OUTCOMES}
        self._waiting = Gauge(
            "stallwatch_relay_waiting_messages",
            "Messages that are kept and have not arrived yet.",
            registry=self.registry,
        )
        self._watchdog = Gauge(
            "stallwatch_relay_watchdog_timestamp_seconds",
            "Unix time at which the watchdog alert was heard last.",
            registry=self.registry,
        )

    def delivery(self, outcome: str) -> None:
        """A try ended in one of the `OUTCOMES`."""
        self._deliveries[outcome].inc()

    def follow(self, waiting: Callable[[], int], watchdog_at: Callable[[], float | None]) -> None:
        """Ask these whenever somebody reads the numbers."""
        self._waiting.set_function(lambda: float(waiting()))
        self._watchdog.set_function(lambda: watchdog_at() or 0.0)
