"""Convert the configuration to the settings of other packages and open the incident database."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from stallwatch.config.keys import KEYS
from stallwatch.config.loading import Config

if TYPE_CHECKING:
    from stallwatch_alerts.delivery.outbox import Outbox
    from stallwatch_alerts.people import OperatorActions
    from stallwatch_alerts.settings import AlertSettings, RelaySettings
    from stallwatch_alerts.store import IncidentStore
    from stallwatch_dashboard.settings import DashboardSettings
    from stallwatch_exporter.settings import ExporterSettings, JoinSettings, ServerSettings
    from stallwatch_logs.inputs import Limits

T = TypeVar("T")


def settings_of(config: Config, kind: type[T], *sections: str, **given: Any) -> T:
    """Return an instance of the dataclass `kind`.

    Each field has the value of the configuration key of the same name. If several `sections` have such a key,
    the first section takes precedence. A field's name can begin with the section (``stall_factor``,
    ``dashboard_url``).
    """
    names = {field.name for field in fields(kind)}  # type: ignore[arg-type]
    for section in sections:
        for key in KEYS:
            for name in (key.name, f"{section}_{key.name}"):
                if key.section == section and name in names:
                    given.setdefault(name, config[key.full_name])
    return kind(**given)


def rule_folders(config: Config) -> list[Path]:
    """Return the rule folders other than the packaged catalogue: first the packs, then the user's folders."""
    from stallwatch_rules.pages.catalogue import folder_of_pack

    return [*map(folder_of_pack, config["rules.packs"]), *config["rules.dirs"]]


def read_limits(config: Config, seconds: float | None = None) -> Limits:
    """Return the limits for compressed logs, and the deadline for all reading: `seconds` after this call."""
    from stallwatch_logs.inputs import Limits

    return Limits(
        members=config["archives.max_members"],
        expanded=config["archives.max_expanded_mb"] * 1024**2,
        ratio=config["archives.max_ratio"],
        until=None if seconds is None else time.monotonic() + seconds,
    )


def mask_site_patterns(config: Config) -> None:
    """Make this process and its child processes mask text that matches ``[redact] patterns``."""
    if patterns := config["redact.patterns"]:
        # Import the module only if it is needed, because most configurations have no patterns.
        from stallwatch_rules.text.redact import use_site_patterns

        use_site_patterns(patterns)


def exporter_settings(config: Config) -> ExporterSettings:
    """Return the settings for ``stallwatch run`` and ``stallwatch tail``."""
    from stallwatch_exporter.cluster.host import split_address
    from stallwatch_exporter.settings import ExporterSettings

    # Reserve the ports of the relay and of the agents' reports. Otherwise, the metrics server of a second
    # run might use one of these ports, which by default follow the port of the first run's metrics server.
    _, joined = split_address(config["join.address"])
    reserved = tuple(port for port in (config["relay.port"], config["join.port"], joined) if port)
    return settings_of(
        config,
        ExporterSettings,
        "exporter",
        "stall",
        "run",
        "ui",
        reserved_ports=reserved,
        server=server_settings(config),
        join=join_settings(config),
    )


def join_settings(config: Config) -> JoinSettings:
    """Return the settings for connecting a run's agents and for ``stallwatch coordinator``."""
    from stallwatch_exporter.settings import JoinSettings

    return settings_of(config, JoinSettings, "join")


def server_settings(config: Config) -> ServerSettings:
    """Return the settings that all servers share: which clients they accept, and their hostnames."""
    from stallwatch_exporter.settings import ServerSettings

    mistake = next((str(problem) for problem in config.problems if is_about_servers(problem.key)), "")
    return settings_of(config, ServerSettings, "server", mistake=mistake)


def is_about_servers(key: str) -> bool:
    """Return whether the key controls access to the servers, so that a mistake must not grant access."""
    return key.partition(".")[0] == "server"


def alert_settings(config: Config) -> AlertSettings:
    """Return the settings for the chat sink and ``stallwatch alerts test``."""
    from stallwatch_alerts.settings import AlertSettings

    return settings_of(config, AlertSettings, "alerts", "dashboard", "docs")


def relay_settings(config: Config) -> RelaySettings:
    """Return the settings for ``stallwatch relay``."""
    from stallwatch_alerts.settings import RelaySettings

    alerts = alert_settings(config)
    return settings_of(config, RelaySettings, "relay", alerts=alerts, server=server_settings(config))


def dashboard_settings(config: Config, insecure: bool) -> DashboardSettings:
    """Return the settings for ``stallwatch dashboard``."""
    from stallwatch_dashboard.access import Login
    from stallwatch_dashboard.settings import DashboardSettings

    return settings_of(
        config,
        DashboardSettings,
        "dashboard",
        "ui",
        insecure=insecure,
        home=config["run.home"],
        incidents_url=config["alerts.incidents_url"],
        rules=tuple(map(str, rule_folders(config))),
        alert_urls=config["alerts.urls"],
        login=settings_of(config, Login, "login"),
        server=server_settings(config),
    )


def open_store(config: Config) -> IncidentStore:
    """Open the configured incident database, which is in the state folder by default."""
    from stallwatch_alerts.store import IncidentStore

    url = config["alerts.incidents_url"]
    return IncidentStore(url) if url else IncidentStore.at_home(config["run.home"])


def open_spool(config: Config) -> Outbox:
    """Return the outbox of this host's agents, which is a separate file if `alerts.incidents_url` is set."""
    from stallwatch_alerts.delivery.outbox import Outbox
    from stallwatch_alerts.store import IncidentStore

    if not config["alerts.incidents_url"]:
        return Outbox(open_store(config).engine)
    return Outbox(IncidentStore.in_file(config["run.home"], "spool.db").engine)


def open_people(config: Config) -> OperatorActions:
    """Return the store of silences and acknowledgements, which is in the incident database."""
    from stallwatch_alerts.people import OperatorActions

    return OperatorActions(open_store(config).engine)


def notified_elsewhere(config: Config) -> Callable[[str, Sequence[str]], bool]:
    """Return a function that checks whether another process has already notified a chat.

    The function opens the incident database on first use. Call it for messages in the outbox of
    ``open_spool``. If this outbox is in the incident database, messages about to be sent count as sent, and
    the function considers only messages that a relay kept for later.
    """

    @cache
    def outbox() -> Outbox:
        from stallwatch_alerts.delivery.outbox import Outbox

        return Outbox(open_store(config).engine)

    def is_notified(channel: str, keys: Sequence[str]) -> bool:
        if config["alerts.incidents_url"]:
            return outbox().has_all(channel, keys)
        return outbox().notified_meanwhile(channel, keys)

    return is_notified
