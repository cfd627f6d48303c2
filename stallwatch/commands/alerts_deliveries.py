"""``stallwatch alerts deliveries|send``: what became of messages, and another try for those that wait."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from stallwatch.commands.alerts_people import opened
from stallwatch.commands.context import App, tell

if TYPE_CHECKING:
    from stallwatch.config import Config
    from stallwatch_alerts.delivery.outbox import Outbox


@click.command()
@click.option("--run", metavar="NAME", help="Of one run only.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=50, help="How many (default: 50).")
@click.pass_obj
def deliveries(app: App, run: str | None, limit: int) -> None:
    """List messages to chats, newest first: waiting, sent, given-up or withdrawn, and why.

    Chats are masked.
    """
    from rich.console import Console
    from rich.table import Table

    found = [one for outbox in _outboxes(app.sound_config()) for one in outbox.deliveries(run, limit)]
    found.sort(key=lambda one: -one.created_at)
    table = Table("when", "state", "tries", "chat", "title", "reason", box=None, pad_edge=False)
    for one in found[:limit]:
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(one.created_at))
        table.add_row(when, one.state, str(one.attempts), one.name, one.title, one.reason)
    console = Console()
    if not console.is_terminal:
        console.width = 240
    if table.row_count:
        console.print(table, highlight=False, markup=False)
    else:
        tell("no message")


@click.command()
@click.option(
    "--wait",
    type=click.FloatRange(0.1),
    default=30.0,
    metavar="SECONDS",
    help="How long to try (default: 30).",
)
@click.pass_obj
def send(app: App, wait: float) -> None:
    """Send what earlier runs on this host left waiting.

    Exit code: 1 when something still waits. Limits and pauses of the chats hold here, too.
    """
    config = app.sound_config()
    from stallwatch.handover import alert_settings
    from stallwatch_alerts.delivery.channel import apprise_channel
    from stallwatch_alerts.delivery.fingerprint import fingerprint
    from stallwatch_alerts.delivery.sender import Sender

    settings = alert_settings(config)
    outboxes = _outboxes(config)
    senders = [
        Sender(url, outbox, apprise_channel, language=settings.language, report=tell)
        for outbox in outboxes
        for url in settings.all_urls
    ]
    channels = [fingerprint(url) for url in settings.all_urls]

    def waiting() -> int:
        return sum(outbox.waiting(channels, time.time()) for outbox in outboxes)

    deadline = time.monotonic() + wait
    while waiting() and time.monotonic() < deadline:
        time.sleep(0.1)
    for sender in senders:
        sender.close(5.0)
    click.echo(f"sent {sum(sender.sent for sender in senders)}")
    others = sum(outbox.waiting() for outbox in outboxes) - (left := waiting())
    if others:
        tell(f"{others} messages are for chats that are not configured here, or not due yet")
    if left:
        tell(f"{left} messages still wait; stallwatch alerts deliveries tells why")
        raise click.exceptions.Exit(1)


def _outboxes(config: Config) -> list[Outbox]:
    """The incident database's, and this host's own where that is elsewhere."""
    from stallwatch.watching import open_spool
    from stallwatch_alerts.delivery.outbox import Outbox

    store, _ = opened(config)
    found = [Outbox(store.engine)]
    if config["alerts.incidents_url"]:
        found.append(open_spool(config))
    return found
