"""The relay as a whole: server, outbox, one sender per chat, and the dead-man's switch."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from stallwatch_alerts.channels import open_channel
from stallwatch_alerts.deadman import Deadman
from stallwatch_alerts.delivery.outbox import Outbox
from stallwatch_alerts.delivery.planning import Planner
from stallwatch_alerts.delivery.sender import Sender
from stallwatch_alerts.notice import Channel
from stallwatch_alerts.people import People
from stallwatch_alerts.relay.composing import Composer
from stallwatch_alerts.relay.dispatching import Dispatcher
from stallwatch_alerts.relay.numbers import RelayNumbers
from stallwatch_alerts.relay.relaying import Receipt, Relaying
from stallwatch_alerts.relay.server import RelayServer
from stallwatch_exporter import steady

if TYPE_CHECKING:
    from stallwatch_alerts.relay.settings import RelaySettings
    from stallwatch_alerts.store import IncidentStore
    from stallwatch_rules.pages.catalogue import Catalogue

_STUCK_SECONDS = 180.0  # a sender that was not seen for so long hangs in a try
_CLOSING = 5.0
_PRUNE_SECONDS = 86400.0


class Relay:
    """Runs until closed; everything that it has to do happens in threads of its own."""

    def __init__(
        self,
        settings: RelaySettings,
        store: IncidentStore,
        catalogue: Catalogue,
        *,
        report: Callable[[str], None] = lambda _: None,
        connect: Callable[[str], Channel] | None = None,
        clock: Callable[[], float] = steady.now,
    ) -> None:
        """An `OSError` where the address cannot be had."""
        self._settings = settings
        self._clock = clock
        self._outbox = Outbox(store.engine)
        self._pruned_at = -_PRUNE_SECONDS
        self._pruning: threading.Thread | None = None
        alerts = settings.alerts
        composer = Composer(catalogue, alerts.language, settings.dashboard_url)
        planner = Planner(alerts, lambda: People(store.engine))
        dispatcher = Dispatcher(alerts, planner, composer, catalogue)
        self._relaying = Relaying(store, self._outbox, dispatcher, clock)
        numbers = RelayNumbers()
        numbers.follow(self._outbox.waiting, self._watchdog_at)
        self._senders = [
            Sender(
                url,
                self._outbox,
                connect or open_channel,
                language=alerts.language,
                report=report,
                count=numbers.delivery,
                delivered=lambda chat, keys: self._outbox.note(chat, keys, steady.wall(clock())),
                acknowledged=planner.is_acknowledged,
                settled=self._outbox.told_meanwhile,
                clock=clock,
            )
            for url in alerts.all_urls
        ]
        # The server last: whoever posts early finds somebody to send.
        try:
            self.server = RelayServer(
                (settings.host, settings.port),
                receive=self._receive,
                healthy=self.unhealthy,
                messages=self._messages,
                numbers=numbers,
                token=settings.token,
                report=report,
            )
        except OSError:
            for sender in self._senders:
                sender.close(0.0)
            raise
        self._deadman = (
            Deadman(alerts.deadman_url, self.blind, seconds=alerts.deadman_seconds, report=report)
            if alerts.deadman_url
            else None
        )

    def unhealthy(self) -> str:
        """What keeps us from doing our work; "" for nothing."""
        try:
            self._outbox.waiting()
        except Exception as error:
            return f"the incident database cannot be read ({type(error).__name__})"
        now = self._clock()
        for sender in self._senders:
            if not sender.alive or now - sender.looked_at > _STUCK_SECONDS:
                return f"nothing is sent to {sender.name} any more"
        return ""

    def blind(self) -> str:
        """As ``unhealthy``, or because no alert could reach us; "" where we see."""
        heard = self._relaying.watchdog_at
        if heard is None:
            return self.unhealthy() or "StallwatchWatchdog does not fire here"
        silent = self._clock() - heard
        if silent > self._settings.watchdog_seconds:
            return f"StallwatchWatchdog was not heard for more than {self._settings.watchdog_seconds:.0f} s"
        return self.unhealthy()

    def close(self) -> None:
        """Take nothing more, finish what is in hand. What is kept is sent at the next start."""
        self.server.close()
        for sender in self._senders:
            sender.close(_CLOSING)
        if self._pruning is not None:
            self._pruning.join(_CLOSING)
        if self._deadman is not None:
            self._deadman.close(None)

    def _prune(self) -> None:
        """Once a day: agents of other hosts may write elsewhere, and never come here."""
        now = self._clock()
        if now - self._pruned_at >= _PRUNE_SECONDS:
            self._pruned_at = now

            def prune() -> None:
                # Where the database is away, tomorrow is early enough.
                with contextlib.suppress(Exception):
                    self._outbox.prune(now, self._settings.alerts.keep_days)

            # Not before what was received is kept, nor before its answer: it may hold the database for long.
            self._pruning = threading.Thread(target=prune, name="stallwatch-prune", daemon=True)
            self._pruning.start()

    def _receive(self, body: bytes) -> Receipt:
        receipt = self._relaying.receive(body)
        if receipt.tally.new:
            for sender in self._senders:
                sender.wake()
        self._prune()
        return receipt

    def _watchdog_at(self) -> float | None:
        heard = self._relaying.watchdog_at
        return None if heard is None else steady.wall(heard)

    def _messages(self, run: str) -> list[Any]:
        return list(self._outbox.deliveries(run or None))
