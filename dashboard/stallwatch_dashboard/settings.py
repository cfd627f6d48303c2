"""Define the dashboard's settings and pass them from the starting process to the serving process."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from stallwatch_dashboard.access import Login
from stallwatch_exporter.serving.hosts import name_in, normalised
from stallwatch_exporter.settings import ServerSettings, state_home
from stallwatch_rules.decoding import from_json

_VARIABLE = "STALLWATCH_DASHBOARD_SETTINGS"
_RELATIVE = re.compile(r"^(sqlite(?:\+\w+)?:///)(?!/|:memory:|file:)([^?]+)")


@dataclass(frozen=True)
class DashboardSettings:
    host: str = "127.0.0.1"  #: address that the server binds to
    port: int = 8501  #: if 0, the system chooses a free port
    insecure: bool = False  #: True allows an address that other hosts can reach, without a login
    home: Path = field(default_factory=state_home)
    targets: tuple[str, ...] = ()  #: agents on other hosts, as "node7:19400" or complete URLs
    language: str = "en"  #: en or zh; a user can choose the other language
    scrape_seconds: float = 1.0
    keep_days: int = 30  #: days after which stored metrics are deleted
    max_upload_mb: int = 1024  #: limit for the size of one file on the post-mortem page
    max_uploads_mb: int = 2048  #: limit for the total size of all users' uploads at one time
    max_members: int = 10_000  #: limit for the number of files in one archive
    max_expanded_mb: int = 65_536  #: limit for the expanded size of one compressed file or archive
    max_ratio: int = 200  #: limit for the number of expanded bytes per compressed byte
    incidents_url: str = ""  #: database where agents store incidents; if empty, incidents.db in `home`
    prometheus_url: str = field(default="", repr=False)  #: stores the metrics; the URL can contain a password
    rules: tuple[str, ...] = ()  #: folders with the user's own rules
    alert_urls: tuple[str, ...] = field(default=(), repr=False)  #: secret chat URLs, used by the test button
    login: Login = field(default_factory=Login)
    url: str = ""  #: public address; if empty, the address of `host` and `port`
    #: Allowed hostnames, and credentials for /metrics.
    server: ServerSettings = field(default_factory=ServerSettings)

    @property
    def address(self) -> str:
        return self.url or own_address(self.host, self.port)

    @property
    def hosts(self) -> frozenset[str]:
        """The hostnames under which the pages are served, according to the configuration."""
        return normalised((*self.server.allowed_hosts, self.host, *name_in(self.url)))


def own_address(host: str, port: int) -> str:
    host = "127.0.0.1" if host in ("0.0.0.0", "::", "") else host
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def to_environment(settings: DashboardSettings) -> dict[str, str]:
    """Return the environment variable that passes `settings` to a child process in another folder."""
    url = _RELATIVE.sub(lambda found: f"{found[1]}{Path(found[2]).absolute()}", settings.incidents_url)
    settings = replace(settings, home=settings.home.absolute(), incidents_url=url)
    return {_VARIABLE: msgspec.json.encode(settings, enc_hook=str).decode()}


def from_environment() -> DashboardSettings:
    """Return the settings that `to_environment` passed, or the defaults if the variable is not set."""
    given = os.environ.get(_VARIABLE)
    if not given:
        return DashboardSettings()
    return from_json(given, DashboardSettings, dec_hook=lambda _kind, text: Path(text))
