"""``stallwatch dashboard``: the pages in a browser."""

from __future__ import annotations

import click

from stallwatch.commands.context import App


@click.command()
@click.option("--host", metavar="ADDRESS", help="Address to listen on (default: 127.0.0.1).")
@click.option("--port", type=click.IntRange(0, 65535), help="Port to listen on (default: 8501; 0: any).")
@click.option("--insecure", is_flag=True, help="Listen where others can reach it, though there is no login.")
@click.pass_obj
def dashboard(app: App, host: str | None, port: int | None, insecure: bool) -> None:
    """Serve the pages for a browser.

    All runs, a live run, and the post-mortem of uploaded logs.

    \b
    stallwatch dashboard
    ssh -L 8501:127.0.0.1:8501 node     # the dashboard of another machine, safely

    Runs of this machine are found by themselves, those of others in [dashboard] targets.
    """
    from stallwatch.handover import dashboard_settings

    config = app.sound_config(dashboard__host=host, dashboard__port=port)
    try:
        from stallwatch_dashboard.launch import serve
    except ModuleNotFoundError as error:
        raise click.UsageError(f"{error.name} is missing; pip install 'stallwatch[dashboard]'") from error
    raise click.exceptions.Exit(serve(dashboard_settings(config, insecure)))
