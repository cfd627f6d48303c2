"""Implement ``stallwatch coordinator``: a service that merges the reports from a cluster's runs."""

from __future__ import annotations

import click

from stallwatch.cli.context import (
    App,
    address_options,
    catalogue_of,
    language_option,
    print_notice,
    rules_option,
    stop_event,
)
from stallwatch.config.handover import join_settings
from stallwatch_exporter.private import keep_private


@click.command()
@address_options(
    "join", "Address to listen on (default: all addresses).", "Port to listen on (default: 20401)."
)
@language_option
@rules_option
@click.pass_obj
def coordinator(app: App) -> None:
    """Merge the reports from the agents of all runs and send messages on behalf of the agents.

    \b
    STALLWATCH_JOIN_SECRET=… stallwatch coordinator
    STALLWATCH_JOIN_SECRET=… stallwatch run --join coordinator.example.org:20401 -- torchrun train.py

    A run across many hosts does not need this service, because its first host merges the reports. However, a
    coordinator service outlives the cluster's jobs, and no other host needs the URLs of the chats. If the
    service does not respond, the run's hosts merge the reports themselves. To stop the service, press
    Control+C.
    """
    from stallwatch.cli.watching import Destinations
    from stallwatch_exporter.cluster.secrets import NoSecret, configured_secret
    from stallwatch_exporter.cluster.service import PORT, CoordinatorService
    from stallwatch_exporter.malloc_arenas import limit_malloc_arenas

    limit_malloc_arenas()  # every connected agent has its own thread
    config = app.config()
    join = join_settings(config)
    try:
        secret = configured_secret(join)
    except NoSecret as problem:
        raise click.UsageError(str(problem)) from problem
    if secret is None:
        raise click.UsageError(
            "agents must authenticate; set STALLWATCH_JOIN_SECRET on this host and on all hosts of the run,"
            " or set [join] tls_certificate, tls_key, and tls_ca"
        )
    keep_private(config["run.home"])
    destinations = Destinations(config, catalogue_of(config))
    try:
        service = CoordinatorService(join, secret, destinations.sinks, notice=destinations.notice)
    except OSError as error:
        destinations.close()
        address = f"{join.host or '*'}:{join.port or PORT}"
        raise click.UsageError(
            f"cannot listen on {address}: {error.strerror or error}; choose another port with --port"
        ) from error
    stopped = stop_event()
    print_notice(f"agents can join on port {service.port}")
    while not stopped.wait(1.0):
        destinations.alive()
    service.close()
    destinations.close()
