"""Implement ``stallwatch relay``: forward alerts from Alertmanager to the chats."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import click

from stallwatch.cli.context import (
    App,
    address_options,
    catalogue_of,
    extra,
    language_option,
    open_incidents,
    print_notice,
    rules_option,
    say,
    shuts_relay,
    stop_event,
)
from stallwatch.config.chats import checked_settings, connecting
from stallwatch.config.handover import alert_settings, relay_settings
from stallwatch_exporter.private import keep_private
from stallwatch_exporter.settings import is_own_address


@click.command()
@address_options(
    "relay", "Address to listen on (default: 127.0.0.1).", "Port to listen on (default: 19401; 0: any)."
)
@click.option("--insecure", is_flag=True, help="Allow other hosts to connect without a token.")
@partial(language_option, key="alerts.language")
@rules_option
@click.pass_obj
def relay(app: App, insecure: bool) -> None:
    """Forward alerts from Alertmanager to the chats and add the diagnosis to each alert.

    \b
    stallwatch relay
    STALLWATCH_RELAY_TOKEN=… stallwatch relay --host 0.0.0.0

    Alertmanager posts to http://HOST:PORT/alertmanager (webhook_configs). The relay keeps accepted alerts in
    the incident database until they are delivered. It combines an alert with the incident of the run and
    routes the alert according to [[alerts.routes]]. It does not notify a chat that the run's agent has
    already notified. To stop the relay, press Control+C.
    """
    config = app.config(shuts_relay)
    if not alert_settings(config).all_urls:
        raise click.UsageError(say("no-chat", config["ui.language"]))
    with extra("alerts", config["ui.language"]):
        from stallwatch_alerts.masking import mask_url
        from stallwatch_alerts.relay.relay import Relay
    if any(problem.loses_chats for problem in config.problems):
        chats = ", ".join(map(mask_url, alert_settings(config).all_urls))
        print_notice(say("relay-without", config["ui.language"], chats=chats))
    catalogue = catalogue_of(config)
    settings = replace(relay_settings(config), alerts=checked_settings(config, catalogue, print_notice))
    guarded = settings.token or settings.server.token_file or settings.server.basic_auth_file
    if not insecure and not guarded and not is_own_address(settings.host):
        raise click.UsageError(
            f"other people can reach {settings.host} and send messages to your chats; keep 127.0.0.1, set"
            " [relay] token (STALLWATCH_RELAY_TOKEN) or [server] token_file, or use --insecure"
        )
    keep_private(config["run.home"])
    store = open_incidents(config)
    try:
        running = Relay(settings, store, catalogue, report=print_notice, connect=partial(connecting, config))
    except OSError as error:
        raise click.UsageError(
            f"cannot listen on {settings.host}:{settings.port}: {error.strerror};"
            " choose another port with --port"
        ) from error
    stopped = stop_event()
    shown = f"[{settings.host}]" if ":" in settings.host else settings.host
    print_notice(f"Alertmanager can post to http://{shown}:{running.server.port}/alertmanager")
    stopped.wait()
    running.close()
    store.close()
