"""``stallwatch alerts``: try the way to people before it is needed."""

from __future__ import annotations

import click

from stallwatch.commands.context import App, language_option, tell


@click.group()
def alerts() -> None:
    """Try the chats that are told of incidents."""


@alerts.command()
@language_option
@click.pass_obj
def test(app: App, language: str | None) -> None:
    """Send a test message to every URL in [alerts] urls, once.

    \b
    stallwatch alerts test
    STALLWATCH_ALERTS_URLS=slack://… stallwatch alerts test --language zh

    Exit code: 1 when a URL did not take it. URLs are shown masked.
    """
    config = app.sound_config(alerts__language=language)
    urls = config["alerts.urls"]
    if not urls:
        raise click.UsageError(
            'no chat is configured; write urls = ["slack://…"] under [alerts] in stallwatch.toml'
            " or set STALLWATCH_ALERTS_URLS"
        )
    try:
        from stallwatch_alerts.trial import test_message
    except ModuleNotFoundError as error:
        raise click.UsageError(f"{error.name} is missing; pip install 'stallwatch[alerts]'") from error
    deliveries = test_message(urls, config["alerts.language"])
    for delivery in deliveries:
        if delivery.delivered:
            click.echo(f"ok      {delivery.url}")
        else:
            click.echo(f"failed  {delivery.url}: {delivery.reason}")
    failed = sum(not delivery.delivered for delivery in deliveries)
    if failed:
        tell(f"{failed} of {len(deliveries)} chats did not take the message")
        raise click.exceptions.Exit(1)
