"""Each package gets its own small settings object, made from the configuration in force."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stallwatch.config import Config

if TYPE_CHECKING:
    from stallwatch_alerts.settings import AlertSettings
    from stallwatch_dashboard.settings import DashboardSettings
    from stallwatch_exporter.settings import ExporterSettings


def exporter_settings(config: Config) -> ExporterSettings:
    """For ``stallwatch run`` and ``stallwatch tail``."""
    from stallwatch_exporter.settings import ExporterSettings

    return ExporterSettings(
        host=config["exporter.host"],
        port=config["exporter.port"],
        tls_certificate=config["exporter.tls_certificate"],
        tls_key=config["exporter.tls_key"],
        tls_client_ca=config["exporter.tls_client_ca"],
        stall_floor_seconds=config["stall.floor_seconds"],
        stall_start_seconds=config["stall.start_seconds"],
        stall_factor=config["stall.factor"],
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
    )


def dashboard_settings(config: Config, insecure: bool) -> DashboardSettings:
    """For ``stallwatch dashboard``."""
    from stallwatch_dashboard.settings import DashboardSettings

    return DashboardSettings(
        host=config["dashboard.host"],
        port=config["dashboard.port"],
        insecure=insecure,
        home=config["run.home"],
        targets=config["dashboard.targets"],
        language=config["ui.language"],
        incidents_url=config["alerts.incidents_url"],
        rules=tuple(str(folder) for folder in config["rules.dirs"]),
    )
