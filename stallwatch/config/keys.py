"""Define every key of the configuration: its type, its default, and its limits.

``docs/configuration.md`` describes what each key does.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Any


@dataclass(frozen=True)
class Key:
    """A key of the configuration. The value of a list is a tuple. The value of an unset path is ``None``."""

    section: str
    name: str
    kind: str  #: kind of the value, as defined in ``values.py``
    default: Any
    secret: bool = False
    choices: tuple[str, ...] = ()
    lowest: float = -inf
    highest: float = inf

    @property
    def full_name(self) -> str:
        """The full name of the key, such as ``alerts.urls``."""
        return f"{self.section}.{self.name}"

    @property
    def variable(self) -> str:
        """The environment variable of the key, such as ``STALLWATCH_ALERTS_URLS``."""
        return f"STALLWATCH_{self.section}_{self.name}".upper()


_PORT: dict[str, Any] = {"lowest": 0, "highest": 65535}
_LANGUAGES = ("en", "zh")

KEYS: tuple[Key, ...] = (
    Key("run", "home", "path", None),
    Key("run", "keep_days", "int", 30, lowest=0),
    Key("run", "keep_gb", "number", 10.0, lowest=0),
    Key("run", "probe", "bool", True),
    Key("run", "fail_on_finding", "bool", False),
    Key("exporter", "host", "text", "127.0.0.1"),
    Key("exporter", "port", "int", 19400, **_PORT),
    Key("exporter", "linger_seconds", "number", 30.0, lowest=0),
    Key("exporter", "tls_certificate", "path", None),
    Key("exporter", "tls_key", "path", None),
    Key("exporter", "tls_client_ca", "path", None),
    Key("exporter", "sd_dir", "path", None),
    Key("server", "allowed_hosts", "texts", ()),
    Key("server", "token_file", "path", None),
    Key("server", "basic_auth_file", "path", None),
    Key("stall", "floor_seconds", "number", 30.0, lowest=0.1),
    Key("stall", "start_seconds", "number", 1800.0, lowest=0.1),
    Key("stall", "factor", "number", 3.0, lowest=1),
    Key("stall", "on_stall", "reaction", "report"),
    Key("join", "mode", "choice", "auto", choices=("auto", "off")),
    Key("join", "run", "text", ""),
    Key("join", "address", "text", ""),
    Key("join", "secret", "text", "", secret=True),
    Key("join", "host", "text", ""),
    Key("join", "port", "int", 0, **_PORT),
    Key("join", "tls_certificate", "path", None),
    Key("join", "tls_key", "path", None),
    Key("join", "tls_ca", "path", None),
    Key("alerts", "urls", "urls", (), secret=True),
    Key("alerts", "language", "choice", "en", choices=_LANGUAGES),
    Key("alerts", "min_severity", "choice", "warning", choices=("info", "warning", "critical")),
    Key("alerts", "routes", "routes", (), secret=True),
    Key("alerts", "keep_days", "int", 90, lowest=1),
    Key("alerts", "alertmanager_url", "web", ""),
    Key("alerts", "incidents_url", "text", "", secret=True),
    Key("alerts", "deadman_url", "web", "", secret=True),
    Key("alerts", "deadman_seconds", "number", 60.0, lowest=1),
    Key("relay", "host", "text", "127.0.0.1"),
    Key("relay", "port", "int", 19401, **_PORT),
    Key("relay", "token", "text", "", secret=True),
    Key("relay", "watchdog_seconds", "number", 300.0, lowest=1),
    Key("dashboard", "url", "web", ""),
    Key("dashboard", "host", "text", "127.0.0.1"),
    Key("dashboard", "port", "int", 8501, **_PORT),
    Key("dashboard", "prometheus_url", "web", "", secret=True),
    Key("dashboard", "targets", "texts", ()),
    Key("dashboard", "max_upload_mb", "int", 1024, lowest=1),
    Key("dashboard", "max_uploads_mb", "int", 2048, lowest=1),
    Key("dashboard", "max_members", "int", 10_000, lowest=1),
    Key("dashboard", "max_expanded_mb", "int", 65_536, lowest=1),
    Key("dashboard", "max_ratio", "int", 200, lowest=2),
    Key("docs", "url", "web", ""),
    Key("archives", "max_members", "int", 10_000, lowest=1),
    Key("archives", "max_expanded_mb", "int", 65_536, lowest=1),
    Key("archives", "max_ratio", "int", 200, lowest=2),
    Key("login", "metadata_url", "web", ""),
    Key("login", "client_id", "text", ""),
    Key("login", "client_secret", "text", "", secret=True),
    Key("login", "cookie_secret", "text", "", secret=True),
    Key("login", "viewers", "texts", ()),
    Key("login", "operators", "texts", ()),
    Key("login", "groups_claim", "text", "groups"),
    Key("login", "scopes", "texts", ("openid", "email", "profile")),
    Key("rules", "dirs", "paths", ()),
    Key("rules", "packs", "texts", ()),
    Key("redact", "patterns", "patterns", ()),
    Key("ui", "language", "choice", "en", choices=_LANGUAGES),
)
BY_NAME = {key.full_name: key for key in KEYS}
SECTIONS = tuple(dict.fromkeys(key.section for key in KEYS))
