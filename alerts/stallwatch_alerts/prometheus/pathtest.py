"""With a real metric and a real alert, test each link in the path from a metric to the chats.

The test serves one metric at the address of an agent on this host. Prometheus scrapes the metric, the rule
``StallwatchTest`` fires, Alertmanager routes the alert, and the relay notifies the chats. The test checks the
links in this order. The first check that fails shows the broken link.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import Any

from prometheus_client import CollectorRegistry, Gauge

from stallwatch_alerts.prometheus.clients import Alertmanager, NoAnswer, Prometheus, Relay
from stallwatch_alerts.prometheus.rulefiles import alerts_written_by_hand
from stallwatch_exporter.serving.server import serve
from stallwatch_exporter.settings import ExporterSettings

ALERT = "StallwatchTest"
_LOOK_SECONDS = 0.5
_STARTING = 15.0


@dataclass(frozen=True)
class Link:
    """A link in the path from a metric to the chats, and the state that the test found."""

    name: str
    holds: bool
    detail: str = ""  #: the result, or why the link is broken and what to do


class Broken(Exception):
    """Raised if a link in the path is broken. The message contains the reason and the fix."""


class PathTest:
    """One run of the test. `wait` is the maximum number of seconds to wait for each link."""

    def __init__(
        self,
        prometheus: str,
        relay: str,
        exporter: ExporterSettings,
        *,
        alertmanager: str = "",
        authorization: str = "",
        wait: float = 60.0,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self.run = f"alert-test-{time.time_ns() // 1_000_000}"
        self._prometheus = Prometheus(prometheus)
        self._alertmanager = Alertmanager(alertmanager) if alertmanager else None
        self._relay = Relay(relay, authorization)
        self._exporter = exporter
        self._wait = wait
        self._clock = clock
        self._pause = pause

    def links(self) -> Iterator[Link]:
        """Test the links in order until one is broken, and yield each link as soon as its state is known."""
        steps: list[tuple[str, Callable[[], str]]] = [
            ("Prometheus responds and has loaded the rules", self._has_rules),
            ("Prometheus sends alerts to an Alertmanager", self._sends),
            ("the relay responds", self._relay_answers),
        ]
        if not (yield from _walked(steps)):
            return
        registry = CollectorRegistry()
        Gauge(
            "stallwatch_alert_test", "1 while the path of the alerts is tested.", ("run",), registry=registry
        ).labels(self.run).set(1)
        problems: list[str] = []
        server = serve(registry, self._exporter, problems.append)
        if server is None:
            port = self._exporter.port
            why = problems[0] if problems else "the port is not available"
            remedy = "use --port to specify a free port that Prometheus scrapes"
            yield Link(f"a metric is served on port {port}", False, f"{why}; {remedy}")
            return
        try:
            yield Link("a metric is served", True, server.url)
            yield from _walked(
                [
                    ("Prometheus scrapes the metric", self._scraped),
                    ("the rule for the metric fires", self._fires),
                    ("Alertmanager received the alert", self._routed),
                    ("the relay notified the chats", self._delivered),
                ]
            )
        finally:
            server.close()

    # ---- the links

    def _has_rules(self) -> str:
        rules = self._prometheus.rules()
        ours = [rule for rule in rules if str(rule.get("name", "")).startswith("Stallwatch")]
        if not any(rule["name"] == ALERT for rule in ours):
            raise Broken(
                f"{self._prometheus.url} has no rule {ALERT}; run `stallwatch rules export --prometheus DIR`,"
                " add the files to rule_files in prometheus.yml, and reload Prometheus"
            )
        sick = [rule for rule in ours if rule.get("health") == "err"]
        if sick:
            raise Broken(f"the rule {sick[0]['name']} fails: {sick[0].get('lastError', '')}")
        counted = f"{self._prometheus.url}, {len(ours)} alerting rules"
        loaded = {rule["name"] for rule in ours}
        absent = [name for name in alerts_written_by_hand() if name not in loaded]
        if absent:
            return (
                f"{counted} of an older release, without {absent[0]};"
                " export the rules again and reload Prometheus"
            )
        return counted

    def _sends(self) -> str:
        # Prometheus needs a few seconds after its start to discover Alertmanagers.
        known = self._until(self._prometheus.alertmanagers, min(self._wait, _STARTING))
        if not known:
            raise Broken(
                f"{self._prometheus.url} has no Alertmanager; add one under alerting in prometheus.yml"
            )
        self._alertmanager = self._alertmanager or Alertmanager(known[0])
        try:
            self._alertmanager.get("/api/v2/status")
        except NoAnswer as error:
            raise Broken(
                f"{error}; if the address differs on this host, specify it with --alertmanager URL"
            ) from None
        return self._alertmanager.url

    def _relay_answers(self) -> str:
        try:
            self._relay.messages(self.run)
        except NoAnswer as error:
            raise Broken(
                f"{error}; start `stallwatch relay`, or specify its address with --relay URL"
            ) from None
        return self._relay.url

    def _scraped(self) -> str:
        began = self._clock()
        expression = f'stallwatch_alert_test{{run="{self.run}"}}'
        if not self._until(lambda: self._prometheus.query(expression)):
            raise Broken(self._why_not_scraped())
        return self._after(began)

    def _why_not_scraped(self) -> str:
        port = self._exporter.port
        ours = [target for target in self._prometheus.targets() if f":{port}/" in target.get("scrapeUrl", "")]
        if not ours:
            return f"no target of {self._prometheus.url} has port {port}; add this host to scrape_configs"
        down = [target for target in ours if target.get("health") != "up"]
        if down:
            return (
                f"{down[0]['scrapeUrl']}: {down[0].get('lastError') or 'not scraped yet'};"
                " bind to an address that Prometheus can reach (--host 0.0.0.0)"
            )
        return f"Prometheus scrapes {ours[0]['scrapeUrl']}, but another host or program serves this address"

    def _fires(self) -> str:
        began = self._clock()
        expression = f'ALERTS{{alertname="{ALERT}", run="{self.run}", alertstate="firing"}}'
        if not self._until(lambda: self._prometheus.query(expression)):
            raise Broken(
                f"{ALERT} does not fire; check whether evaluation_interval is longer than {self._wait:.0f} s"
            )
        return self._after(began)

    def _routed(self) -> str:
        assert self._alertmanager is not None
        began, alertmanager = self._clock(), self._alertmanager
        found = self._until(lambda: alertmanager.alerts(self.run))
        if not found:
            raise Broken(
                f"{alertmanager.url} did not receive the alert; check the log of Prometheus"
                " and its metric prometheus_notifications_errors_total"
            )
        status = found[0].get("status", {})
        if status.get("state") == "suppressed":
            by = "a silence" if status.get("silencedBy") else "an inhibition rule"
            raise Broken(f"{alertmanager.url} suppresses the alert, because {by} matches it")
        receivers = ", ".join(receiver["name"] for receiver in found[0].get("receivers", []))
        return f"{self._after(began)}, for {receivers}"

    def _delivered(self) -> str:
        began = self._clock()
        messages = self._until(lambda: self._relay.messages(self.run))
        if not messages:
            raise Broken(
                "the relay received no notification; check whether the receiver's webhook URL is"
                f" {self._relay.url}/alertmanager and whether the receiver sends the token"
            )
        self._until(lambda: all(message["state"] == "sent" for message in self._relay.messages(self.run)))
        messages = self._relay.messages(self.run)
        late = [message for message in messages if message["state"] != "sent"]
        if late:
            raise Broken(
                f"{late[0]['name']} did not accept the message: {late[0]['reason'] or 'still waiting'}"
            )
        return f"{self._after(began)}: {', '.join(message['name'] for message in messages)}"

    # ---- helpers

    def _until(self, call: Callable[[], Any], seconds: float | None = None) -> Any:
        """Return the first truthy result of `call`, or the last result after `seconds` (default: `wait`)."""
        deadline = self._clock() + (self._wait if seconds is None else seconds)
        while not (found := call()) and self._clock() < deadline:
            self._pause(_LOOK_SECONDS)
        return found

    def _after(self, began: float) -> str:
        return f"after {self._clock() - began:.1f} s"


def _walked(steps: list[tuple[str, Callable[[], str]]]) -> Generator[Link, None, bool]:
    """Run the checks in order and yield each result as a link. Return whether all checks succeed."""
    for name, step in steps:
        try:
            yield Link(name, True, step())
        except (Broken, NoAnswer) as error:
            yield Link(name, False, str(error))
            return False
        except (KeyError, TypeError, IndexError) as error:
            yield Link(name, False, f"the response has an unknown format ({type(error).__name__}: {error})")
            return False
    return True
