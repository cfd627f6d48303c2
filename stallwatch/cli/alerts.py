"""Implement ``stallwatch alerts``: test the chats, list messages, and send waiting messages."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import click

from stallwatch.cli.context import (
    App,
    Group,
    address_options,
    catalogue_of,
    extra,
    hides_notifications,
    language_option,
    local_time,
    plain_table,
    print_line,
    print_notice,
    print_notices,
    report_wrong_alerts,
    say,
    show_table,
)
from stallwatch.cli.incidents import ack, current_user, list_incidents, note, opened, run_named, silence
from stallwatch.config.chats import connecting, misnamed, not_loaded, places
from stallwatch.config.handover import alert_settings, exporter_settings, notified_elsewhere, open_spool
from stallwatch_exporter import steady

if TYPE_CHECKING:
    from stallwatch.config.loading import Config
    from stallwatch_alerts.delivery.outbox import Delivery, Outbox

_LISTED = 10_000
_NAME = 12  # number of characters that distinguish a chat's fingerprint from others
_FIRST_TRY_SECONDS = 20.0


@click.group(cls=Group)
def alerts() -> None:
    """Test the configured chats; list, acknowledge, and silence incidents; list messages."""


for _command in (list_incidents, ack, note, silence):
    alerts.add_command(_command)


@alerts.command()
@click.option(
    "--through",
    type=click.Choice(["prometheus"]),
    help="Test the entire path: metric, Prometheus, Alertmanager, relay, and chats.",
)
@click.option(
    "--prometheus",
    default="http://127.0.0.1:9090",
    metavar="URL",
    help="Address of Prometheus (default: http://127.0.0.1:9090).",
)
@click.option(
    "--alertmanager", metavar="URL", help="Address of Alertmanager (default: the address in Prometheus)."
)
@click.option(
    "--relay", metavar="URL", help="Address of the relay (default: the port of [relay] on this host)."
)
@address_options(
    "exporter",
    "Address on which the test metric is served (default: 127.0.0.1).",
    "Port of the test metric; Prometheus must scrape this port.",
    lowest=1,
)
@click.option(
    "--wait",
    type=click.FloatRange(1),
    default=60.0,
    metavar="SECONDS",
    help="Maximum number of seconds for each step of the path (default: 60).",
)
@partial(language_option, key="alerts.language")
@click.pass_obj
def test(
    app: App,
    through: str | None,
    prometheus: str,
    alertmanager: str | None,
    relay: str | None,
    wait: float,
) -> None:
    """Send one test message to each URL in [alerts] urls and in its routes.

    \b
    stallwatch alerts test
    STALLWATCH_ALERTS_URLS=slack://… stallwatch alerts test --language zh
    stallwatch alerts test --through prometheus --prometheus http://monitor:9090

    With --through prometheus, the message takes the same path as alerts, and the output names the first
    failing step of the path. Exit code: 1 if a chat did not accept the message, a step failed, a route names
    an unknown rule or family, a file was ignored because other accounts can write to it, or the configuration
    has any other mistake. The output masks URLs.
    """
    config = app.config(hides_notifications, also=report_wrong_alerts)
    if through is not None:
        at = relay or f"http://{config['relay.host']}:{config['relay.port']}"
        _test_delivery_path(config, prometheus, alertmanager or "", at, wait)
        if config.ignored:
            raise click.exceptions.Exit(1)
        return
    ui_language = config["alerts.language" if "alerts.language" in app.flags else "ui.language"]
    urls = alert_settings(config).all_urls
    if not urls:
        raise click.UsageError(say("no-chat", ui_language))
    with extra("alerts", ui_language):
        from stallwatch_alerts.trial import test_message
    catalogue = catalogue_of(config)
    names = misnamed(config, catalogue)
    print_notices([*names, *not_loaded(config, catalogue)])
    deliveries = test_message(urls, config["alerts.language"])
    for url, delivery in zip(urls, deliveries, strict=True):
        if delivery.delivered:
            print_line(f"ok      {delivery.url}")
        else:
            print_line(f"failed  {delivery.url}: {delivery.reason}")
            for line in filter(None, (delivery.remedy, ", ".join(places(config, url)))):
                print_line(f"        → {line}")
    failed = sum(not delivery.delivered for delivery in deliveries)
    if failed:
        print_notice(say("not-taken", ui_language, failed=failed, all=len(deliveries)))
    if failed or names or config.problems or config.ignored:
        raise click.exceptions.Exit(1)


def _test_delivery_path(config: Config, prometheus: str, alertmanager: str, relay: str, wait: float) -> None:
    from stallwatch_alerts.prometheus.pathtest import PathTest
    from stallwatch_exporter.serving.authentication import own_authorization

    # Use the port of an agent, because Prometheus does not scrape any other port.
    exporter = replace(exporter_settings(config), port_tries=0)
    token = config["relay.token"]
    allowed = f"Bearer {token}" if token else own_authorization(exporter.server)
    trial = PathTest(prometheus, relay, exporter, alertmanager=alertmanager, authorization=allowed, wait=wait)
    for link in trial.links():
        print_line(f"{'ok' if link.holds else 'failed':7} {link.name}: {link.detail}")
        if not link.holds:
            raise click.exceptions.Exit(1)


@alerts.command()
@click.option(
    "--run", metavar="NAME", help="List only messages about this run; the beginning of its name is enough."
)
@click.option(
    "--limit", type=click.IntRange(1, 10_000), default=50, help="Maximum number of messages (default: 50)."
)
@click.pass_obj
def deliveries(app: App, run: str | None, limit: int) -> None:
    """List messages to chats, newest first, with their states and reasons.

    The states are waiting, sent, given-up, and withdrawn. The list masks the URLs of the chats.
    """
    config = app.config(hides_notifications)
    run = run_named(opened(config)[0], run) if run else None
    found = [delivery for outbox in _outboxes(config) for delivery in outbox.deliveries(run, limit)]
    found.sort(key=lambda delivery: -delivery.created_at)
    table = plain_table("when", "sent", "state", "tries", "chat", "title", "reason")
    for delivery in found[:limit]:
        sent = "" if delivery.sent_at is None else time.strftime("%H:%M:%S", time.localtime(delivery.sent_at))
        table.add_row(
            local_time(delivery.created_at),
            sent,
            delivery.state,
            str(delivery.attempts),
            delivery.name,
            delivery.title,
            delivery.reason,
        )
    if not show_table(table):
        print_notice(say("no-message", config["ui.language"]))


@alerts.command()
@click.option(
    "--wait",
    type=click.FloatRange(0.1),
    default=30.0,
    metavar="SECONDS",
    help="Number of seconds to keep trying (default: 30).",
)
@click.option(
    "--drop",
    multiple=True,
    metavar="CHAT",
    help="First discard the messages for this chat, which must not be configured; can be repeated.",
)
@click.pass_obj
def send(app: App, wait: float, drop: tuple[str, ...]) -> None:
    """Send the messages that earlier runs on this host could not deliver.

    Messages that are still waiting are listed by chat, with the reason. Exit code: 1 if a message that is due
    is still waiting, even for a chat that is not configured. Escalations, and messages that are held during
    quiet hours, do not count. The rate limits and pauses of the chats apply.

    A chat that was removed from the configuration is listed with a name. To discard its messages, pass the
    name to --drop. If hosts share a database, first check that the chat is not configured on another host.
    """
    config = app.config(hides_notifications)
    from stallwatch_alerts.delivery.outbox import Outbox
    from stallwatch_alerts.delivery.sender import Sender
    from stallwatch_alerts.notice import fingerprint

    settings = alert_settings(config)
    store, people = opened(config)
    outboxes = _outboxes(config)
    for named in drop:
        _drop(outboxes, named, settings.all_urls, config["ui.language"])
    shared = Outbox(store.engine)  # agents and relays also record sent messages in this database
    settled_checks = (shared.notified_meanwhile, notified_elsewhere(config))
    senders = [
        Sender(
            url,
            outbox,
            partial(connecting, config),
            language=settings.language,
            report=print_notice,
            delivered=lambda channel, keys: shared.note(channel, keys, time.time()),
            acknowledged=people.is_acknowledged,
            settled=settled,
        )
        for outbox, settled in zip(outboxes, settled_checks, strict=False)
        for url in settings.all_urls
    ]
    channels = [fingerprint(url) for url in settings.all_urls]
    began = [sender.looked_at for sender in senders]
    deadline = time.monotonic() + wait
    while any(outbox.waiting(channels, steady.now()) for outbox in outboxes):
        late = time.monotonic() - deadline
        if late >= _FIRST_TRY_SECONDS:
            break
        # Each sender tries once, even after the time limit, because loading the senders can exceed the limit.
        tried = all(sender.looked_at > before for sender, before in zip(senders, began, strict=True))
        if late >= 0 and tried:
            break
        time.sleep(0.1)
    for sender in senders:
        sender.close(5.0)
    language = config["ui.language"]
    print_line(say("sent", language, count=sum(sender.sent for sender in senders)))
    left = _waiting(outboxes)
    now = time.time()
    groups = Counter((delivery.name, _why(delivery, channels, now, language)) for delivery in left)
    for (chat, why), count in groups.items():
        print_notice(say("waiting", language, count=count, chat=chat, why=why))
    if any(delivery.not_before <= now for delivery in left):
        raise click.exceptions.Exit(1)


def _waiting(outboxes: Sequence[Outbox]) -> list[Delivery]:
    return [delivery for outbox in outboxes for delivery in outbox.deliveries(limit=_LISTED, state="waiting")]


def _drop(outboxes: Sequence[Outbox], named: str, urls: Sequence[str], language: str) -> None:
    """Discard the messages for a chat that is no longer configured.

    `named` is the beginning of the chat's fingerprint and must match only one chat.
    """
    from stallwatch_alerts.notice import fingerprint

    waiting = _waiting(outboxes) if named else []
    chats = {message.channel: message.name for message in waiting if message.channel.startswith(named)}
    if len(chats) != 1:
        raise click.UsageError(say("drop-several" if chats else "drop-none", language, name=named))
    ((channel, chat),) = chats.items()
    if channel in map(fingerprint, urls):
        raise click.UsageError(say("drop-configured", language, name=named, chat=chat))
    count = sum(outbox.drop(channel, f"dropped by {current_user()}", steady.now()) for outbox in outboxes)
    print_line(say("dropped", language, count=count, chat=chat))


def _why(delivery: Delivery, channels: Sequence[str], now: float, language: str) -> str:
    """Return the reason why a message has not been delivered."""
    if delivery.channel not in channels:
        return say("why-unknown", language, name=delivery.channel[:_NAME])
    if delivery.not_before > now:
        key = "why-escalation" if delivery.escalation else "why-quiet"
        return say(key, language, when=local_time(delivery.not_before))
    if delivery.reason:
        return say("why-refused", language, reason=delivery.reason)
    return say("why-pending", language)


def _outboxes(config: Config) -> list[Outbox]:
    """Return the outbox in the incident database and, if this database is remote, also this host's outbox."""
    from stallwatch_alerts.delivery.outbox import Outbox

    store, _ = opened(config)
    found = [Outbox(store.engine)]
    if config["alerts.incidents_url"]:
        found.append(open_spool(config))
    return found
