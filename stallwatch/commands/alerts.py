"""``stallwatch alerts``: the way to people: try it, follow it, and say what people decided."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import click

from stallwatch.alert_names import misnamed
from stallwatch.alert_urls import places
from stallwatch.commands.alerts_deliveries import deliveries, send
from stallwatch.commands.alerts_people import ack, list_incidents, note, silence
from stallwatch.commands.alerts_problems import tell_wrong_alerts
from stallwatch.commands.alerts_words import language_of, say
from stallwatch.commands.context import App, catalogue_of, language_option, tell, tell_all
from stallwatch.handover import alert_settings

if TYPE_CHECKING:
    from stallwatch.config import Config


@click.group()
def alerts() -> None:
    """Try the chats that are told of incidents; acknowledge, silence, and see what was delivered."""


for _command in (list_incidents, ack, note, silence, deliveries, send):
    alerts.add_command(_command)


@alerts.command()
@click.option(
    "--through",
    type=click.Choice(["prometheus"]),
    help="Try the whole way: metric, Prometheus, Alertmanager, relay, chats.",
)
@click.option(
    "--prometheus",
    default="http://127.0.0.1:9090",
    metavar="URL",
    help="Where Prometheus is (default: http://127.0.0.1:9090).",
)
@click.option("--alertmanager", metavar="URL", help="Where Alertmanager is (default: Prometheus tells).")
@click.option("--relay", metavar="URL", help="Where the relay is (default: this host, port of [relay]).")
@click.option("--host", metavar="ADDRESS", help="Where the test's metric is served (default: 127.0.0.1).")
@click.option("--port", type=click.IntRange(1, 65535), help="Its port; Prometheus must scrape it.")
@click.option(
    "--wait",
    type=click.FloatRange(1),
    default=60.0,
    metavar="SECONDS",
    help="How long each link may take (default: 60).",
)
@language_option
@click.pass_obj
def test(
    app: App,
    through: str | None,
    prometheus: str,
    alertmanager: str | None,
    relay: str | None,
    host: str | None,
    port: int | None,
    wait: float,
    language: str | None,
) -> None:
    """Send a test message to every URL in [alerts] urls and in its routes, once.

    \b
    stallwatch alerts test
    STALLWATCH_ALERTS_URLS=slack://… stallwatch alerts test --language zh
    stallwatch alerts test --through prometheus --prometheus http://monitor:9090

    With --through prometheus the message takes the way that alerts take, and the first link that does not
    hold is told. Exit code: 1 when a URL did not take it, a link is broken, or a route names a rule or family
    that there is not, or the configuration has another mistake. URLs are shown masked.
    """
    flags = {"alerts__language": language, "exporter__host": host, "exporter__port": port}
    config = app.config_of_chats(also=tell_wrong_alerts, **flags)
    if through is not None:
        at = relay or f"http://{config['relay.host']}:{config['relay.port']}"
        _try_the_way(config, prometheus, alertmanager or "", at, wait)
        return
    spoken = language or language_of(config)
    urls = alert_settings(config).all_urls
    if not urls:
        raise click.UsageError(say("no-chat", spoken))
    try:
        from stallwatch_alerts.trial import test_message
    except ModuleNotFoundError as error:
        raise click.UsageError(say("missing", spoken, name=error.name)) from error
    names = misnamed(config, catalogue_of(config))
    tell_all(names)
    deliveries = test_message(urls, config["alerts.language"])
    for url, delivery in zip(urls, deliveries, strict=True):
        if delivery.delivered:
            click.echo(f"ok      {delivery.url}")
        else:
            click.echo(f"failed  {delivery.url}: {delivery.reason}")
            for line in filter(None, (delivery.remedy, ", ".join(places(config, url)))):
                click.echo(f"        → {line}")
    failed = sum(not delivery.delivered for delivery in deliveries)
    if failed:
        tell(say("not-taken", spoken, failed=failed, all=len(deliveries)))
    if failed or names or config.problems:
        raise click.exceptions.Exit(1)


def _try_the_way(config: Config, prometheus: str, alertmanager: str, relay: str, wait: float) -> None:
    from stallwatch.handover import exporter_settings
    from stallwatch_alerts.prometheus.pathtest import PathTest

    # Where an agent would be: on another port Prometheus would not look.
    exporter = replace(exporter_settings(config), port_tries=0)
    trial = PathTest(
        prometheus, relay, exporter, alertmanager=alertmanager, token=config["relay.token"], wait=wait
    )
    for link in trial.links():
        click.echo(f"{'ok' if link.holds else 'failed':7} {link.name}: {link.said}")
        if not link.holds:
            raise click.exceptions.Exit(1)
