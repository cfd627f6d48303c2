"""Each package gets its own small settings object, made from the configuration in force."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stallwatch.config import Config

if TYPE_CHECKING:
    from stallwatch_alerts.relay.settings import RelaySettings
    from stallwatch_alerts.settings import AlertSettings
    from stallwatch_dashboard.settings import DashboardSettings
    from stallwatch_exporter.settings import ExporterSettings


def exporter_settings(config: Config) -> ExporterSettings:
    """For ``stallwatch run`` and ``stallwatch tail``."""
    from stallwatch_exporter.settings import ExporterSettings

    return ExporterSettings(
        host=config["exporter.host"],
        port=config["exporter.port"],
        reserved_ports=(config["relay.port"],),  # by default the port behind our own: a second run took it
        linger_seconds=config["exporter.linger_seconds"],
        tls_certificate=config["exporter.tls_certificate"],
        tls_key=config["exporter.tls_key"],
        tls_client_ca=config["exporter.tls_client_ca"],
        stall_floor_seconds=config["stall.floor_seconds"],
        stall_start_seconds=config["stall.start_seconds"],
        stall_factor=config["stall.factor"],
        on_stall=config["stall.on_stall"],
        home=config["run.home"],
        keep_days=config["run.keep_days"],
        keep_gb=config["run.keep_gb"],
        probe=config["run.probe"],
        language=config["ui.language"],
    )


def alert_settings(config: Config) -> AlertSettings:
    """For the chat sink and ``stallwatch alerts test``."""
    from stallwatch_alerts.settings import AlertSettings

    return AlertSettings(
        urls=config["alerts.urls"],
        language=config["alerts.language"],
        min_severity=config["alerts.min_severity"],
        routes=config["alerts.routes"],
        keep_days=config["alerts.keep_days"],
        dashboard_url=config["dashboard.url"],
        deadman_url=config["alerts.deadman_url"],
        deadman_seconds=config["alerts.deadman_seconds"],
    )


def relay_settings(config: Config) -> RelaySettings:
    """For ``stallwatch relay``."""
    from stallwatch_alerts.relay.settings import RelaySettings

    return RelaySettings(
        host=config["relay.host"],
        port=config["relay.port"],
        token=config["relay.token"],
        dashboard_url=config["dashboard.url"],
        watchdog_seconds=config["relay.watchdog_seconds"],
        alerts=alert_settings(config),
    )


def dashboard_settings(config: Config, insecure: bool) -> DashboardSettings:
    """For ``stallwatch dashboard``."""
    from stallwatch.commands.context import rule_folders
    from stallwatch_dashboard.access import Login
    from stallwatch_dashboard.settings import DashboardSettings

    return DashboardSettings(
        host=config["dashboard.host"],
        port=config["dashboard.port"],
        insecure=insecure,
        home=config["run.home"],
        targets=config["dashboard.targets"],
        prometheus_url=config["dashboard.prometheus_url"],
        language=config["ui.language"],
        incidents_url=config["alerts.incidents_url"],
        rules=tuple(str(folder) for folder in rule_folders(config)),
        alert_urls=config["alerts.urls"],
        url=config["dashboard.url"],
        max_upload_mb=config["dashboard.max_upload_mb"],
        max_uploads_mb=config["dashboard.max_uploads_mb"],
        max_members=config["dashboard.max_members"],
        max_expanded_mb=config["dashboard.max_expanded_mb"],
        max_ratio=config["dashboard.max_ratio"],
        login=Login(
            metadata_url=config["login.metadata_url"],
            client_id=config["login.client_id"],
            client_secret=config["login.client_secret"],
            cookie_secret=config["login.cookie_secret"],
            viewers=config["login.viewers"],
            operators=config["login.operators"],
            groups_claim=config["login.groups_claim"],
            scopes=config["login.scopes"],
        ),
    )
