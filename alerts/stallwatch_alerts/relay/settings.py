"""What ``stallwatch relay`` can be told."""

from __future__ import annotations

from dataclasses import dataclass, field

from stallwatch_alerts.settings import AlertSettings


@dataclass(frozen=True)
class RelaySettings:
    """Where it listens, who may post, whom it tells, and whom it pings."""

    host: str = "127.0.0.1"
    port: int = 19401  #: 0 lets the system choose
    token: str = field(default="", repr=False)  #: with it, requests must carry it as a bearer token
    dashboard_url: str = ""  #: for links to runs' pages
    watchdog_seconds: float = 300.0  #: without StallwatchWatchdog for so long we are blind
    alerts: AlertSettings = field(default_factory=AlertSettings)
