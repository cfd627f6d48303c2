"""Define every key of the configuration: its type, its default and its purpose."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Any, Literal

KindName = Literal[
    "text",
    "web",
    "path",
    "int",
    "number",
    "choice",
    "bool",
    "texts",
    "paths",
    "urls",
    "patterns",
    "reaction",
    "routes",
]


@dataclass(frozen=True)
class Key:
    """A key of the configuration. The value of a list is a tuple; the value of an unset path is ``None``."""

    section: str
    name: str
    kind: KindName
    default: Any
    about: str
    secret: bool = False
    choices: tuple[str, ...] = ()
    lowest: float = -inf
    highest: float = inf

    @property
    def full_name(self) -> str:
        """Full name of the key, such as ``alerts.urls``."""
        return f"{self.section}.{self.name}"

    @property
    def variable(self) -> str:
        """Environment variable of the key, such as ``STALLWATCH_ALERTS_URLS``."""
        return f"STALLWATCH_{self.section}_{self.name}".upper()


_PORT: dict[str, Any] = {"lowest": 0, "highest": 65535}
_LANGUAGES = ("en", "zh")

KEYS: tuple[Key, ...] = (
    Key("run", "home", "path", None, "the folder that holds runs, incidents and metrics"),
    Key("run", "keep_days", "int", 30, "ended runs older than this are removed", lowest=0),
    Key("run", "keep_gb", "number", 10.0, "the oldest ended runs beyond this size are removed", lowest=0),
    Key("run", "probe", "bool", True, "whether stallwatch run puts a probe into the ranks"),
    Key("run", "fail_on_finding", "bool", False, "whether stallwatch run exits with 1 if the run failed"),
    Key("exporter", "host", "text", "127.0.0.1", "the address that /metrics is bound to"),
    Key("exporter", "port", "int", 19400, "the port of /metrics", **_PORT),
    Key(
        "exporter",
        "linger_seconds",
        "number",
        30.0,
        "how long /metrics may outlive the command until Prometheus read how it ended",
        lowest=0,
    ),
    Key("exporter", "tls_certificate", "path", None, "PEM file; with it, /metrics speaks HTTPS"),
    Key("exporter", "tls_key", "path", None, "PEM file of its key, where it is not in the certificate's"),
    Key("exporter", "tls_client_ca", "path", None, "scrapers must show a certificate of this authority"),
    Key("exporter", "sd_dir", "path", None, "a folder in which each /metrics announces itself to Prometheus"),
    Key(
        "server",
        "allowed_hosts",
        "texts",
        (),
        "further names under which our servers answer",
    ),
    Key("server", "token_file", "path", None, "/metrics and relay want a bearer token of this file"),
    Key("server", "basic_auth_file", "path", None, "or a user:password of this file"),
    Key("stall", "floor_seconds", "number", 30.0, "a stall is never called sooner than this", lowest=0.1),
    Key(
        "stall", "start_seconds", "number", 1800.0, "the threshold while the rhythm is not known", lowest=0.1
    ),
    Key("stall", "factor", "number", 3.0, "the threshold is this times the slowest usual step", lowest=1),
    Key("stall", "on_stall", "reaction", "report", "what to do at a stall: report, abort or command …"),
    Key("join", "mode", "choice", "auto", "whether agents of one run join", choices=("auto", "off")),
    Key("join", "run", "text", "", "the run that this agent belongs to, where no scheduler names it"),
    Key("join", "address", "text", "", "HOST:PORT of the agent or service that merges the run's reports"),
    Key("join", "secret", "text", "", "what all agents of the run know", secret=True),
    Key("join", "host", "text", "", "the address that agents of other hosts reach this one at"),
    Key("join", "port", "int", 0, "the port for other agents (0: one made of the run's key)", **_PORT),
    Key("join", "tls_certificate", "path", None, "PEM file; with all three, agents speak mutual TLS"),
    Key("join", "tls_key", "path", None, "PEM file of its key"),
    Key("join", "tls_ca", "path", None, "agents must show a certificate of this authority"),
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
    Key("alerts", "routes", "routes", (), "which chats hear of what, and when (tables)", secret=True),
    Key(
        "alerts", "keep_days", "int", 90, "incidents that are over, and messages, are kept so long", lowest=1
    ),
    Key("alerts", "alertmanager_url", "web", "", "where stallwatch alerts silence silences, too"),
    Key("alerts", "incidents_url", "text", "", "another incident database (SQLAlchemy URL)", secret=True),
    Key("alerts", "deadman_url", "web", "", "pinged while we can see (healthchecks.io)", secret=True),
    Key("alerts", "deadman_seconds", "number", 60.0, "how often deadman_url is pinged", lowest=1),
    Key("relay", "host", "text", "127.0.0.1", "the address that stallwatch relay is bound to"),
    Key("relay", "port", "int", 19401, "the port of stallwatch relay", **_PORT),
    Key("relay", "token", "text", "", "Alertmanager must send this bearer token", secret=True),
    Key(
        "relay",
        "watchdog_seconds",
        "number",
        300.0,
        "without the watchdog alert for this long, the relay does not ping deadman_url",
        lowest=1,
    ),
    Key("dashboard", "url", "web", "", "the address at which people reach it, for links in messages"),
    Key("dashboard", "host", "text", "127.0.0.1", "the address that the dashboard is bound to"),
    Key("dashboard", "port", "int", 8501, "the port of the dashboard", **_PORT),
    Key("dashboard", "prometheus_url", "web", "", "numbers from this Prometheus, not scraped", secret=True),
    Key("dashboard", "targets", "texts", (), "agents on other hosts, such as node7:19400"),
    Key("dashboard", "max_upload_mb", "int", 1024, "the largest file that may be uploaded", lowest=1),
    Key("dashboard", "max_uploads_mb", "int", 2048, "what all uploads may take together", lowest=1),
    Key("dashboard", "max_members", "int", 10_000, "files that are read of one uploaded archive", lowest=1),
    Key("dashboard", "max_expanded_mb", "int", 65_536, "what one upload may expand to", lowest=1),
    Key("dashboard", "max_ratio", "int", 200, "how many times its size one may expand to", lowest=2),
    Key("docs", "url", "web", "", "the address of your copy of the documentation site, for links to rules"),
    Key("archives", "max_members", "int", 10_000, "files that are read of one archive", lowest=1),
    Key("archives", "max_expanded_mb", "int", 65_536, "what one packed file may expand to", lowest=1),
    Key("archives", "max_ratio", "int", 200, "how many times its size one may expand to", lowest=2),
    Key("login", "metadata_url", "web", "", "the OpenID Connect provider; with it, people must sign in"),
    Key("login", "client_id", "text", "", "what the provider knows the dashboard by"),
    Key("login", "client_secret", "text", "", "the password that goes with it", secret=True),
    Key("login", "cookie_secret", "text", "", "signs the cookies of those signed in", secret=True),
    Key("login", "viewers", "texts", (), "who may look: addresses, @domains, group:names, or *"),
    Key("login", "operators", "texts", (), "who may look and act, in the same words"),
    Key("login", "groups_claim", "text", "groups", "the claim that lists a person's groups"),
    Key("login", "scopes", "texts", ("openid", "email", "profile"), "what the provider is asked for"),
    Key("rules", "dirs", "paths", (), "folders of your own rule pages"),
    Key("rules", "packs", "texts", (), "packs of further rules, such as other-frameworks"),
    Key("redact", "patterns", "patterns", (), "what is masked beside the usual secrets (RE2 patterns)"),
    Key("ui", "language", "choice", "en", "the language of reports and pages", choices=_LANGUAGES),
)
BY_NAME = {key.full_name: key for key in KEYS}
SECTIONS = tuple(dict.fromkeys(key.section for key in KEYS))
