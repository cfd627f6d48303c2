"""What the alerts can be told. The command line reads file, environment and flags and hands this over."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from stallwatch_exporter.incident import Severity

Language = Literal["en", "zh"]


@dataclass(frozen=True)
class AlertSettings:
    """Who is told, in which language, and from which severity on."""

    urls: tuple[str, ...] = ()  #: Apprise URLs; secrets, so out of every log and message
    language: Language = "en"
    min_severity: Severity = "warning"

    def __repr__(self) -> str:
        return f"AlertSettings({len(self.urls)} urls, {self.language}, {self.min_severity})"
