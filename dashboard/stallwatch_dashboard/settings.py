"""What the dashboard can be told, and how the serving process gets it from the one that starts it."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from stallwatch_exporter.runfolder import state_home

_VARIABLE = "STALLWATCH_DASHBOARD_SETTINGS"


@dataclass(frozen=True)
class DashboardSettings:
    """Settings of the dashboard; every default works as it stands."""

    host: str = "127.0.0.1"  #: address the pages are bound to
    port: int = 8501  #: 0 lets the system choose
    insecure: bool = False  #: allow another address than this host's own, though there is no login
    home: Path = field(default_factory=state_home)
    targets: tuple[str, ...] = ()  #: agents on other hosts: "node7:19400" or whole URLs
    language: str = "en"  #: of the pages until the reader chooses: en or zh
    scrape_seconds: float = 1.0
    keep_days: int = 30  #: numbers older than this are forgotten
    max_upload_mb: int = 1024  #: for one file of the post-mortem page
    incidents_url: str = ""  #: where the agents keep incidents; empty means incidents.db under home
    rules: tuple[str, ...] = ()  #: further folders of rule pages


def to_environment(settings: DashboardSettings) -> dict[str, str]:
    """The variable that hands `settings` to a child process."""
    return {_VARIABLE: msgspec.json.encode(_plain(settings)).decode()}


def from_environment() -> DashboardSettings:
    """The settings handed over by `to_environment`; the defaults where there are none."""
    told = os.environ.get(_VARIABLE)
    if not told:
        return DashboardSettings()
    fields = msgspec.json.decode(told, type=dict)
    fields["home"] = Path(fields["home"])
    for name in ("targets", "rules"):
        fields[name] = tuple(fields[name])
    return DashboardSettings(**fields)


def _plain(settings: DashboardSettings) -> dict[str, object]:
    return {**vars(settings), "home": str(settings.home)}
