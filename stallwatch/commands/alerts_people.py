"""``stallwatch alerts list|ack|note|silence``: what people say about incidents."""

from __future__ import annotations

import getpass
import re
import socket
import time
from typing import TYPE_CHECKING

import click

from stallwatch.commands.context import App, tell

if TYPE_CHECKING:
    from stallwatch.config import Config
    from stallwatch_alerts.people import People
    from stallwatch_alerts.store import IncidentStore
    from stallwatch_exporter.incident import Incident

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_SHOWN = 100


@click.command("list")
@click.option("--run", metavar="NAME", help="Of one run only.")
@click.option("--all", "everything", is_flag=True, help="Resolved ones, too.")
@click.pass_obj
def list_incidents(app: App, run: str | None, everything: bool) -> None:
    """List incidents that are open, newest first, and the silences in force."""
    from rich.console import Console
    from rich.table import Table

    store, people = opened(app.sound_config())
    now = time.time()
    table = Table("id", "severity", "status", "since", "acknowledged", box=None, pad_edge=False)
    for incident in store.list(run=run, status=None if everything else "open", limit=_SHOWN):
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(incident.opened_at))
        known = "yes" if people.is_acknowledged(incident.id) else ""
        table.add_row(incident.id, incident.severity, incident.status, since, known)
    console = Console()
    if not console.is_terminal:
        console.width = 240
    if table.row_count:
        console.print(table, highlight=False, markup=False)
    else:
        tell("no incident" if everything else "no open incident")
    for silence in people.silences(now):
        until = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(silence.ends_at))
        what = " ".join(filter(None, (silence.run, silence.rule, silence.severity))) or "everything"
        click.echo(f"silence {silence.id} until {until}: {what}  {silence.comment}".rstrip())


@click.command()
@click.argument("incidents", nargs=-1, required=True, metavar="ID|RUN…")
@click.option("--comment", default="", help="Kept with the incident.")
@click.pass_obj
def ack(app: App, incidents: tuple[str, ...], comment: str) -> None:
    """Acknowledge incidents: somebody cares, so nobody else is called.

    \b
    stallwatch alerts ack myrun/stall/silent-hang-no-error/1
    stallwatch alerts ack myrun      # all open ones of the run, and its end

    Exit code: 1 when there is no such incident.
    """
    store, people = opened(app.sound_config())
    now, missing = time.time(), 0
    for name in incidents:
        found = _meant(store, name)
        alerts = people.acknowledge_alerts(name)  # of Prometheus, without an incident: the relay told them
        for one in alerts:
            click.echo(f"acknowledged {one}")
        if not found and not alerts:
            tell(f"no incident {name}; stallwatch alerts list --all shows their ids")
            missing += 1
        for incident in found:
            people.acknowledge(incident.id, _who(), now)
            if comment:
                people.note(incident.id, _who(), comment, now)
            click.echo(f"acknowledged {incident.id}")
    if missing:
        raise click.exceptions.Exit(1)


@click.command()
@click.argument("incident", metavar="ID")
@click.argument("text")
@click.pass_obj
def note(app: App, incident: str, text: str) -> None:
    """Keep a remark with an incident. Exit code: 1 when there is no such incident."""
    _, people = opened(app.sound_config())
    if not people.note(incident, _who(), text, time.time()):
        raise click.ClickException(f"no incident {incident}; stallwatch alerts list --all shows their ids")


@click.command()
@click.option("--run", default="", metavar="NAME", help="Runs of this name; may hold * and ?.")
@click.option("--rule", default="", metavar="ID", help="Incidents of this rule; may hold * and ?.")
@click.option("--severity", type=click.Choice(["info", "warning", "critical"]), help="Only of this severity.")
@click.option("--all", "everything", is_flag=True, help="Incidents of every run and rule.")
@click.option("--for", "duration", default="1h", metavar="TIME", help="How long: 30m, 2h, 1d (default: 1h).")
@click.option("--comment", default="", help="Why.")
@click.option("--end", type=int, metavar="NUMBER", help="End this silence now instead.")
@click.pass_obj
def silence(
    app: App,
    run: str,
    rule: str,
    severity: str | None,
    everything: bool,
    duration: str,
    comment: str,
    end: int | None,
) -> None:
    """Tell nobody of incidents for a while; they are still kept, and their end is told to who knows of them.

    \b
    stallwatch alerts silence --run 'sweep-*' --for 8h --comment 'known, ends tonight'
    stallwatch alerts silence --end 3

    Where [alerts] alertmanager_url is set, Alertmanager silences the same. Agents notice within ten seconds.
    """
    from stallwatch_alerts.people import Silence

    config = app.sound_config()
    _, people = opened(config)
    now = time.time()
    if end is not None:
        if not people.expire(end, now):
            raise click.ClickException(f"no silence {end} is in force; stallwatch alerts list shows them")
        return
    if not (run or rule or severity or everything):
        raise click.UsageError("say what to silence: --run, --rule or --severity, or --all for everything")
    wanted = Silence(now, now + _seconds(duration), run, rule, severity or "", _who(), comment)
    number, until = people.silence(wanted), time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(wanted.ends_at))
    click.echo(f"silence {number} until {until}; stallwatch alerts silence --end {number} ends it")
    if config["alerts.alertmanager_url"]:
        from stallwatch_alerts.alertmanager import silence_there
        from stallwatch_alerts.masking import hide_secrets

        url = config["alerts.alertmanager_url"]
        try:
            click.echo(f"silence {silence_there(url, wanted)} in Alertmanager")
        except (OSError, ValueError, LookupError) as error:
            said = hide_secrets(str(error), url)
            raise click.ClickException(f"Alertmanager did not take the silence: {said}") from None


def opened(config: Config) -> tuple[IncidentStore, People]:
    """The incident database and what people said there; a `ClickException` where it cannot be opened."""
    try:
        from stallwatch.watching import open_store
        from stallwatch_alerts.masking import hide_secrets
        from stallwatch_alerts.people import People
    except ModuleNotFoundError as error:
        raise click.UsageError(f"{error.name} is missing; pip install 'stallwatch[alerts]'") from error
    try:
        store = open_store(config)
        return store, People(store.engine)
    except Exception as error:
        said = hide_secrets(str(error), config["alerts.incidents_url"]).splitlines() or [""]
        raise click.ClickException(
            f"the incident database cannot be opened ({type(error).__name__}: {said[0]})"
        ) from None


def _meant(store: IncidentStore, name: str) -> list[Incident]:
    found = store.get(name)
    if found is not None:
        return [found]
    return [one for one in store.list(run=name) if one.status == "open" or one.kind == "ended"]


def _seconds(text: str) -> float:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smhd])", text.strip().lower())
    if found is None or float(found[1]) == 0:
        raise click.UsageError(f"--for {text}: give a time such as 30m, 2h or 1d")
    return float(found[1]) * _UNITS[found[2]]


def _who() -> str:
    try:
        return f"{getpass.getuser()}@{socket.gethostname()}"[:100]
    except (OSError, KeyError):  # a user without a name, as in some containers
        return socket.gethostname()[:100]
