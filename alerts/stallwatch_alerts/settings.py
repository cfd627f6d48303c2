"""Define the alert settings, which the command line reads from files, the environment, and flags."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from stallwatch_alerts.routing import Route, all_urls
from stallwatch_exporter.incident import Severity
from stallwatch_exporter.settings import ServerSettings

Language = Literal["en", "zh"]


@dataclass(frozen=True)
class AlertSettings:
    """The settings for notifications: the chats, the language, the minimum severity, and the links."""

    urls: tuple[str, ...] = ()  #: Apprise URLs: secrets that must not appear in any log or message
    language: Language = "en"
    min_severity: Severity = "warning"
    routes: tuple[Route, ...] = ()
    keep_days: int = 90  #: days after which resolved incidents and messages are deleted
    dashboard_url: str = ""  #: address of the dashboard, for links to the pages of runs and rules
    docs_url: str = ""  #: address of the documentation site, for links to rules if there is no dashboard
    deadman_url: str = ""  #: address of a dead man's switch, which is pinged while monitoring works; a secret
    deadman_seconds: float = 60.0  #: interval between pings, in seconds

    @property
    def all_urls(self) -> tuple[str, ...]:
        """The distinct URLs of all configured chats."""
        return all_urls(self.urls, self.routes)

    def __repr__(self) -> str:
        return f"AlertSettings({len(self.urls)} urls, {self.language}, {self.min_severity})"


@dataclass(frozen=True)
class RelaySettings:
    """The settings for ``stallwatch relay``: its address, its clients, its chats, and its health checks."""

    host: str = "127.0.0.1"
    port: int = 19401  #: the TCP port; 0 lets the system choose a port
    token: str = field(default="", repr=False)  #: if set, the bearer token that Alertmanager must send

    #: The relay counts as blind after this many seconds without the alert StallwatchWatchdog.
    watchdog_seconds: float = 300.0
    alerts: AlertSettings = field(default_factory=AlertSettings)
    server: ServerSettings = field(default_factory=ServerSettings)
