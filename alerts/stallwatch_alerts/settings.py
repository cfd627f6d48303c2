"""What the alerts can be told. The command line reads file, environment and flags and hands this over."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from stallwatch_alerts.routing import Route, all_urls
from stallwatch_exporter.incident import Severity

Language = Literal["en", "zh"]


@dataclass(frozen=True)
class AlertSettings:
    """Who is told, in which language, and from which severity on."""

    urls: tuple[str, ...] = ()  #: Apprise URLs; secrets, so out of every log and message
    language: Language = "en"
    min_severity: Severity = "warning"
    routes: tuple[Route, ...] = ()
    keep_days: int = 90  #: incidents that are over, and messages, are forgotten after this
    dashboard_url: str = ""  #: for links to runs' pages
    deadman_url: str = ""  #: pinged while we can see; a secret
    deadman_seconds: float = 60.0  #: how often

    @property
    def all_urls(self) -> tuple[str, ...]:
        """Every chat that may be told, each once."""
        return all_urls(self.urls, self.routes)

    def __repr__(self) -> str:
        return f"AlertSettings({len(self.urls)} urls, {self.language}, {self.min_severity})"
