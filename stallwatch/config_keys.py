"""Every key of the configuration: its type, its default and what it is for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

Kind = Literal["text", "path", "int", "number", "choice", "bool", "texts", "paths", "urls"]


@dataclass(frozen=True)
class Key:
    """One key. Lists are tuples; a path that is not set is ``None``."""

    section: str
    name: str
    kind: Kind
    default: Any
    about: str
    secret: bool = False
    choices: tuple[str, ...] = ()
    lowest: float | None = None
    highest: float | None = None

    @property
    def full_name(self) -> str:
        """Such as ``alerts.urls``."""
        return f"{self.section}.{self.name}"

    @property
    def variable(self) -> str:
        """The environment variable, such as ``STALLWATCH_ALERTS_URLS``."""
        return f"STALLWATCH_{self.section}_{self.name}".upper()


_PORT: dict[str, Any] = {"lowest": 0, "highest": 65535}
_LANGUAGES = ("en", "zh")

KEYS: tuple[Key, ...] = (
    Key("run", "home", "path", None, "the folder that holds runs, incidents and metrics"),
    Key("run", "keep_days", "int", 30, "ended runs older than this are removed", lowest=0),
    Key("run", "keep_gb", "number", 10.0, "the oldest ended runs beyond this size are removed", lowest=0),
    Key("run", "probe", "bool", True, "whether stallwatch run puts a probe into the ranks"),
    Key("exporter", "host", "text", "127.0.0.1", "the address that /metrics is bound to"),
    Key("exporter", "port", "int", 19400, "the port of /metrics", **_PORT),
    Key("exporter", "tls_certificate", "path", None, "PEM file; with it, /metrics speaks HTTPS"),
    Key("exporter", "tls_key", "path", None, "PEM file of its key, where it is not in the certificate's"),
    Key("exporter", "tls_client_ca", "path", None, "scrapers must show a certificate of this authority"),
    Key("stall", "floor_seconds", "number", 30.0, "a stall is never called sooner than this", lowest=0.1),
    Key(
        "stall", "start_seconds", "number", 1800.0, "the threshold while the rhythm is not known", lowest=0.1
    ),
    Key("stall", "factor", "number", 3.0, "the threshold is this times the slowest usual step", lowest=1),
    Key("alerts", "urls", "urls", (), "chats to tell (Apprise URLs)", secret=True),
    Key("alerts", "language", "choice", "en", "the language of chat messages", choices=_LANGUAGES),
    Key(
        "alerts",
        "min_severity",
        "choice",
        "warning",
        "incidents below this are not sent",
        choices=("info", "warning", "critical"),
    ),
    Key("alerts", "incidents_url", "text", "", "another incident database (SQLAlchemy URL)", secret=True),
    Key("dashboard", "host", "text", "127.0.0.1", "the address that the dashboard is bound to"),
    Key("dashboard", "port", "int", 8501, "the port of the dashboard", **_PORT),
    Key("dashboard", "targets", "texts", (), "agents on other hosts, such as node7:19400"),
    Key("rules", "dirs", "paths", (), "folders of your own rule pages"),
    Key("ui", "language", "choice", "en", "the language of reports and pages", choices=_LANGUAGES),
)
BY_NAME = {key.full_name: key for key in KEYS}
SECTIONS = tuple(dict.fromkeys(key.section for key in KEYS))
