"""Serve the relay's HTTP API for Alertmanager, Prometheus, and load balancers.

* ``POST /alertmanager``: receives a notification from Alertmanager. Status 200: the notification is stored on
  disk. Status 400: the response lists the alerts that were not stored, or says why no alert was stored.
  Status 5xx: the client must retry.
* ``GET /-/healthy``: returns status 200 if the relay works, or 503 with the reason why it does not.
* ``GET /metrics``: returns the relay's own metrics.
* ``GET /api/messages?run=NAME``: returns the delivery state of the run's messages, as JSON.

All paths except ``/-/healthy`` require credentials. If only ``[relay] token`` is set, ``/metrics`` requires
no credentials either.
"""

from __future__ import annotations

from collections.abc import Callable
from email.message import Message
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qs, urlsplit

import msgspec
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, generate_latest

from stallwatch_alerts.relay.dispatching import Receipt
from stallwatch_alerts.relay.webhook import WebhookProblem
from stallwatch_exporter.serving.authentication import Access
from stallwatch_exporter.serving.connections import BoundedHandler, BoundedServer, ServerThread
from stallwatch_exporter.serving.hosts import Refusal

WEBHOOK = "/alertmanager"
_MOST_BYTES = 32 << 20  # Alertmanager does not limit a group; 10,000 alerts have about 10 MiB
_HEALTHY, _METRICS = "/-/healthy", "/metrics"

_OUTCOMES = ("sent", "failed", "given-up")
_LISTED_LINES = 20  # maximum number of lines in each list of a response
_REMEMBERED = 1000

Answer = tuple[HTTPStatus, str, bytes]


class RelayMetrics:
    """The relay's own metrics, in a separate registry."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        notifications = Counter(
            "stallwatch_relay_notifications",
            "Requests from Alertmanager, by outcome.",
            ("outcome",),
            registry=self.registry,
        )
        messages = Counter(
            "stallwatch_relay_deliveries",
            "Attempts to deliver a message to a chat, by outcome.",
            ("outcome",),
            registry=self.registry,
        )
        self.stored = notifications.labels("stored")
        self.refused = notifications.labels("refused")
        self.failed = notifications.labels("failed")
        self._deliveries = {outcome: messages.labels(outcome) for outcome in _OUTCOMES}
        self._waiting = Gauge(
            "stallwatch_relay_waiting_messages",
            "Stored messages that have not been delivered yet.",
            registry=self.registry,
        )
        self._watchdog = Gauge(
            "stallwatch_relay_watchdog_timestamp_seconds",
            "Unix time at which the watchdog alert was last received.",
            registry=self.registry,
        )

    def delivery(self, outcome: str) -> None:
        """Count a delivery attempt. `outcome` is one of `_OUTCOMES`."""
        self._deliveries[outcome].inc()

    def follow(self, waiting: Callable[[], int], watchdog_at: Callable[[], float | None]) -> None:
        """Set the functions that provide the metrics' current values for each scrape."""
        self._waiting.set_function(lambda: float(waiting()))
        self._watchdog.set_function(lambda: watchdog_at() or 0.0)


class RelayServer(ServerThread):
    """An HTTP server that runs until it is closed.

    `receive` takes a request's body. `healthy` returns the relay's problem, or "" if the relay works.
    """

    def __init__(
        self,
        address: tuple[str, int],
        *,
        receive: Callable[[bytes], Receipt],
        healthy: Callable[[], str],
        messages: Callable[[str], list[Any]],
        metrics: RelayMetrics,
        access: Access,
        report: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Start the server. Raise `OSError` if the address is not available."""
        self._receive = receive
        self._healthy = healthy
        self._messages = messages
        self._metrics = metrics
        self._access = access
        self.challenges = access.challenges
        self._report = report
        self._reported: set[str] = set()
        handler = type("Handler", (_Handler,), {"relay": self})
        super().__init__(BoundedServer(address, handler), "stallwatch-relay", 0.1)

    def refusal(self, path: str, headers: Message) -> Refusal | None:
        """Return the reason to refuse a request with these headers, or ``None`` if there is no reason."""
        hosts, origins, authorization = (
            headers.get_all(name, []) for name in ("Host", "Origin", "Authorization")
        )
        is_open = path == _HEALTHY or (path == _METRICS and not self._access.has_files)
        return self._access.refusal(hosts, origins, authorization, is_open=is_open)

    def take(self, body: bytes) -> Answer:
        """Store a notification and return the response.

        If storing fails, the response makes Alertmanager retry.
        """
        try:
            receipt = self._receive(body)
        except WebhookProblem as problem:
            self._metrics.refused.inc()
            self._report(f"refused a request: {problem}")
            return _text(HTTPStatus.BAD_REQUEST, str(problem))
        except Exception as error:
            self._metrics.failed.inc()
            # Report only the type of the error, because a database's error text can contain its address.
            self._report(
                f"a notification could not be stored ({type(error).__name__}); Alertmanager will try again"
            )
            return _text(HTTPStatus.SERVICE_UNAVAILABLE, "not stored; try again")
        for doubt in receipt.doubts:
            self._report_once(doubt)
        problems, doubts = receipt.problems[:_LISTED_LINES], receipt.doubts[:_LISTED_LINES]
        if problems:
            self._metrics.refused.inc()
            self._report(f"refused {len(receipt.problems)} of the alerts in a request: {problems[0]}")
            stored = f"the other alerts are stored: {receipt.tally}"
            return _text(HTTPStatus.BAD_REQUEST, "refused:", *problems, stored, *doubts)
        self._metrics.stored.inc()
        return _text(HTTPStatus.OK, f"stored: {receipt.tally}", *doubts)

    def _report_once(self, text: str) -> None:
        if text not in self._reported and len(self._reported) < _REMEMBERED:
            self._reported.add(text)
            self._report(text)

    def look(self, path: str, query: str) -> Answer:
        """Return the response to a GET request."""
        if path == _HEALTHY:
            wrong = self._healthy()
            return _text(HTTPStatus.SERVICE_UNAVAILABLE, wrong) if wrong else _text(HTTPStatus.OK, "healthy")
        if path == _METRICS:
            return HTTPStatus.OK, CONTENT_TYPE_LATEST, generate_latest(self._metrics.registry)
        if path == "/api/messages":
            run = parse_qs(query).get("run", [""])[0]
            return HTTPStatus.OK, "application/json", msgspec.json.encode(self._messages(run))
        return _text(HTTPStatus.NOT_FOUND, f"unknown path; Alertmanager must post to {WEBHOOK}")


class _Handler(BoundedHandler):
    relay: RelayServer
    protocol_version = "HTTP/1.1"

    def parse_request(self) -> bool:
        """Parse the request line and the headers.

        Refuse an ambiguous content length, which a proxy could interpret differently.
        """
        if not super().parse_request():
            return False
        if not self.has_one_end():
            self._refuse(HTTPStatus.BAD_REQUEST, "send one Content-Length and no Transfer-Encoding")
            return False
        return True

    def do_POST(self) -> None:
        path = urlsplit(self.path).path
        length = self.headers.get("Content-Length", "")
        if (refusal := self.relay.refusal(path, self.headers)) is not None:
            self._refuse(*refusal)
        elif path != WEBHOOK:
            self._refuse(HTTPStatus.NOT_FOUND, f"unknown path; Alertmanager must post to {WEBHOOK}")
        elif not length.isdecimal():
            self._refuse(HTTPStatus.LENGTH_REQUIRED, "a request needs a Content-Length header")
        elif int(length) > _MOST_BYTES:
            self._refuse(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                "the request is too large; limit its size with max_alerts",
            )
        else:
            body = self.body(int(length))
            if len(body) == int(length):
                self._answer(self.relay.take(body))
            else:
                self.close_connection = True

    def do_GET(self) -> None:
        self.arrived()
        if self.headers.get("Content-Length", "0") != "0":
            self.close_connection = True  # the server does not read the request's body
        parts = urlsplit(self.path)
        if (refusal := self.relay.refusal(parts.path, self.headers)) is not None:
            self._refuse(*refusal)
            return
        try:
            answer = self.relay.look(parts.path, parts.query)
        except Exception as error:
            answer = _text(HTTPStatus.SERVICE_UNAVAILABLE, type(error).__name__)
        self._answer(answer)

    def _refuse(self, status: HTTPStatus, why: str) -> None:
        self.close_connection = True  # the server did not read the request's body
        self._answer(_text(status, why))

    def _answer(self, answer: Answer) -> None:
        status, kind, body = answer
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        if status == HTTPStatus.UNAUTHORIZED:
            for challenge in self.relay.challenges:
                self.send_header(*challenge)
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)


def _text(status: HTTPStatus, *lines: str) -> Answer:
    return status, "text/plain; charset=utf-8", "".join(f"{line}\n" for line in lines).encode()
