"""Implement ``stallwatch dashboard`` and ``stallwatch grafana``: pages for a browser, boards for Grafana."""

from __future__ import annotations

import json
from pathlib import Path

import click

from stallwatch.cli.context import (
    FOLDER,
    App,
    Group,
    address_options,
    any_key,
    extra,
    print_notice,
    write_text,
)


@click.command()
@address_options(
    "dashboard", "Address to listen on (default: 127.0.0.1).", "Port to listen on (default: 8501; 0: any)."
)
@click.option("--insecure", is_flag=True, help="Allow other hosts to connect without a login.")
@click.pass_obj
def dashboard(app: App, insecure: bool) -> None:
    """Start the web dashboard.

    The dashboard shows all runs, the details of each run, and the post-mortem of uploaded logs.

    \b
    stallwatch dashboard
    ssh -L 8501:127.0.0.1:8501 node     # secure access to the dashboard of another machine

    The dashboard finds the runs of this machine. To show agents on other machines, add the agents to
    [dashboard] targets.
    """
    from stallwatch.config.handover import dashboard_settings

    config = app.config(any_key)
    with extra("dashboard"):
        from stallwatch_dashboard.launch import serve
    raise click.exceptions.Exit(serve(dashboard_settings(config, insecure)))


@click.group(cls=Group)
def grafana() -> None:
    """Create the dashboards in Grafana, or write them as files."""


@grafana.command()
@click.argument("folder", type=FOLDER, metavar="DIR")
def boards(folder: Path) -> None:
    """Write the dashboards as JSON files that Grafana can provision.

    \b
    stallwatch grafana boards /var/lib/grafana/dashboards/stallwatch
    """
    for uid, board in _boards().items():
        path = folder / f"{uid}.json"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            write_text(path, json.dumps(board, indent=2, ensure_ascii=False) + "\n")
        except OSError as error:
            raise click.UsageError(
                f"{path}: cannot be written: {error.strerror}; choose another folder"
            ) from error
        click.echo(path)


@grafana.command()
@click.option(
    "--url", required=True, metavar="URL", help="Address of Grafana, such as http://localhost:3000."
)
@click.option(
    "--token",
    envvar="STALLWATCH_GRAFANA_TOKEN",
    required=True,
    metavar="TOKEN",
    help="Token of a service account; STALLWATCH_GRAFANA_TOKEN is safer than this option.",
)
@click.option(
    "--prometheus", default="", metavar="URL", help="Also create a data source for this Prometheus."
)
@click.option(
    "--annotations/--no-annotations", default=True, help="Show incidents as annotations on the dashboards."
)
@click.pass_obj
def push(app: App, url: str, token: str, prometheus: str, annotations: bool) -> None:
    """Create or update the folder, the dashboards, and the incident annotations in Grafana.

    \b
    export STALLWATCH_GRAFANA_TOKEN=…
    stallwatch grafana push --url http://localhost:3000 --prometheus http://prometheus:9090

    Exit code: 1 if Grafana rejected a request.
    """
    found = _boards()
    from stallwatch_dashboard.grafana.push import Grafana, PushError
    from stallwatch_dashboard.grafana.push import push as put

    incidents = _incidents(app) if annotations else []
    try:
        for done in put(Grafana(url, token), found, prometheus, incidents):
            click.echo(f"{done.how:8} {done.what} {done.name}")
    except PushError as error:
        print_notice(str(error))
        raise click.exceptions.Exit(1) from error


def _boards() -> dict[str, dict[str, object]]:
    with extra("grafana"):
        from stallwatch_dashboard.grafana.boards import boards
    return boards()


def _incidents(app: App) -> list:  # type: ignore[type-arg]  # its type would cost the import
    from stallwatch.config.handover import open_store

    config = app.config(any_key)
    if not config["alerts.incidents_url"] and not (config["run.home"] / "incidents.db").exists():
        return []
    store = open_store(config)
    try:
        return store.list(limit=1000)
    finally:
        store.close()
