"""Implement ``stallwatch alerts list|ack|note|silence``: let users respond to incidents."""

from __future__ import annotations

import getpass
import socket
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from stallwatch.cli.context import (
    App,
    catalogue_of,
    duration,
    hides_notifications,
    local_time,
    open_incidents,
    plain_table,
    print_line,
    print_notice,
    say,
    show_table,
)
from stallwatch.config.chats import known_rules, near_rules

if TYPE_CHECKING:
    from pathlib import Path

    from stallwatch.config.loading import Config
    from stallwatch_alerts.people import OperatorActions, Silence
    from stallwatch_alerts.store import IncidentStore
    from stallwatch_exporter.incident import Incident

_SHOWN = 100


@click.command("list")
@click.option(
    "--run", metavar="NAME", help="List only incidents of this run; the beginning of its name is enough."
)
@click.option("--ended", is_flag=True, help="List past incidents instead of open ones.")
@click.option("--all", "everything", is_flag=True, help="List open and past incidents.")
@click.pass_obj
def list_incidents(app: App, run: str | None, ended: bool, everything: bool) -> None:
    """List open incidents, newest first, and active silences."""
    config = app.config(hides_notifications)
    language = config["ui.language"]
    store, people = opened(config)
    which = "all" if everything else "ended" if ended else "open"
    columns = ["id", "severity", "status", "since", *(() if which == "open" else ("until",)), "acknowledged"]
    table = plain_table(*(say(f"head-{name}", language) for name in columns))
    status = {"open": "open", "ended": "resolved", "all": None}[which]
    run = run_named(store, run) if run else None
    found = store.list(run=run, status=status, limit=_SHOWN + 1)
    for incident in found[:_SHOWN]:
        cells = [incident.id, incident.severity, _state(incident, config["run.home"], language)]
        cells.append(local_time(incident.opened_at))
        if which != "open":
            cells.append("" if incident.resolved_at is None else local_time(incident.resolved_at))
        table.add_row(*cells, say("yes", language) if people.is_acknowledged(incident.id) else "")
    if not show_table(table):
        print_notice(say(f"empty-{which}", language))
    if len(found) > _SHOWN:
        print_notice(say("more", language, count=_SHOWN))
    for silence in people.silences(time.time()):
        what = " ".join(filter(None, (silence.run, silence.rule, silence.severity)))
        what = what or say("everything", language)
        line = say("silence", language, number=silence.id, until=local_time(silence.ends_at), what=what)
        print_line(f"{line}  {silence.comment}".rstrip())


@click.command()
@click.argument("incidents", nargs=-1, required=True, metavar="ID|RUN…")
@click.option("--comment", default="", help="A note to store with the incident.")
@click.pass_obj
def ack(app: App, incidents: tuple[str, ...], comment: str) -> None:
    """Acknowledge incidents that you are working on, so that they are not escalated.

    \b
    stallwatch alerts ack myrun/stall/silent-hang-no-error/1
    stallwatch alerts ack myrun      # all open incidents of the run, and its end

    An unambiguous beginning of an ID or of a run's name is enough. Exit code: 1 if no such incident exists or
    the incident is no longer open.
    """
    config = app.config(hides_notifications)
    language = config["ui.language"]
    store, people = opened(config)
    now, missing = time.time(), 0
    for name in incidents:
        found = incidents_named(store, name)
        # The name can also identify Prometheus alerts that the relay sent and that belong to no incident.
        alerts = people.acknowledge_alerts(name)
        for alert in alerts:
            print_line(say("acknowledged", language, incident=alert))
        if not found.incidents and not alerts:
            _report_none(name, found, language)
            missing += 1
        for incident in found.incidents:
            people.acknowledge(incident.id, current_user(), now)
            if comment:
                people.note(incident.id, current_user(), comment, now)
            print_line(_acknowledged(incident, language))
    if missing:
        raise click.exceptions.Exit(1)


@click.command()
@click.argument("incident", metavar="ID|RUN")
@click.argument("text")
@click.pass_obj
def note(app: App, incident: str, text: str) -> None:
    """Add a note to an open or past incident.

    A run's name or the beginning of an ID is enough if it identifies a single incident. Exit code: 1 if no
    such incident exists.
    """
    config = app.config(hides_notifications)
    language = config["ui.language"]
    if not text.strip():
        raise click.UsageError(say("empty-note", language))
    store, people = opened(config)
    found = incidents_named(store, incident, single=True)
    if not found.incidents:
        _report_none(incident, found, language)
        raise click.exceptions.Exit(1)
    people.note(found.incidents[0].id, current_user(), text, time.time())
    print_line(say("noted", language, incident=found.incidents[0].id))


@click.command()
@click.option(
    "--run", default="", metavar="NAME", help="Silence the runs with this name; * and ? are wildcards."
)
@click.option("--rule", default="", metavar="ID", help="Silence this rule; * and ? are wildcards.")
@click.option(
    "--severity",
    type=click.Choice(["info", "warning", "critical"]),
    help="Silence only incidents of this severity.",
)
@click.option("--all", "everything", is_flag=True, help="Silence incidents of every run and rule.")
@click.option(
    "--for",
    "seconds",
    default="1h",
    metavar="TIME",
    callback=duration,
    help="Duration, such as 30m, 2h, or 1d; a number without a unit means seconds (default: 1h).",
)
@click.option("--comment", default="", help="The reason for the silence.")
@click.option(
    "--end", type=int, metavar="NUMBER", help="End the silence with this number instead of adding a silence."
)
@click.pass_obj
def silence(
    app: App,
    run: str,
    rule: str,
    severity: str | None,
    everything: bool,
    seconds: float,
    comment: str,
    end: int | None,
) -> None:
    """Suppress messages about incidents for a limited time.

    Stallwatch still records the incidents. A chat that received a message about an incident also receives a
    message when the incident ends.

    \b
    stallwatch alerts silence --run 'sweep-*' --for 8h --comment 'known, ends tonight'
    stallwatch alerts silence --end 3

    If [alerts] alertmanager_url is set, the command also creates the silence in Alertmanager. Agents apply
    the silence within ten seconds.
    """
    from stallwatch_alerts.people import Silence

    config = app.config(hides_notifications)
    language = config["ui.language"]
    now = time.time()
    if end is not None:
        if not opened(config)[1].expire(end, now):
            raise click.ClickException(say("no-silence", language, number=end))
        return
    if not (run or rule or severity or everything):
        raise click.UsageError(say("silence-what", language))
    near = near_rules(rule, known_rules(catalogue_of(config))) if rule else None
    if near is not None:
        key = "no-rule-near" if near else "no-rule"
        raise click.UsageError(say(key, language, rule=rule, names=", ".join(near)))
    _, people = opened(config)
    wanted = Silence(now, now + seconds, run, rule, severity or "", current_user(), comment)
    number = people.silence(wanted)
    print_line(say("silenced", language, number=number, until=local_time(wanted.ends_at)))
    if config["alerts.alertmanager_url"]:
        _silence_there(config["alerts.alertmanager_url"], wanted, language)


def _silence_there(url: str, wanted: Silence, language: str) -> None:
    from stallwatch_alerts.masking import hide_secrets
    from stallwatch_alerts.prometheus.clients import Alertmanager, NoAnswer

    try:
        print_line(say("silenced-there", language, incident=Alertmanager(url).silence(wanted)))
    except (NoAnswer, LookupError) as error:
        reason = hide_secrets(str(error), url)
        raise click.ClickException(say("not-there", language, reason=reason)) from None


def opened(config: Config) -> tuple[IncidentStore, OperatorActions]:
    """Return the incident database and the store of users' responses. Raise `ClickException` on failure."""
    store = open_incidents(config)
    from stallwatch_alerts.people import OperatorActions  # imported late, because its library is optional

    return store, OperatorActions(store.engine)


def _report_none(name: str, found: NamedIncidents, language: str) -> None:
    """Print that no open incident has this name, and list incidents with similar names."""
    if found.several:
        print_notice(say("several", language, name=name, found=", ".join(found.several)))
    elif found.over:
        print_notice(say("over", language, name=name))
        for incident in found.over[:3]:
            print_notice(f"  {_over('became', incident, language)}")
    else:
        print_notice(say("no-incident", language, name=name))


def _acknowledged(incident: Incident, language: str) -> str:
    if incident.status == "open" or incident.is_final_incident:
        return say("acknowledged", language, incident=incident.id)
    return _over("acknowledged-over", incident, language)


def _over(key: str, incident: Incident, language: str) -> str:
    """Return a sentence about how and when an incident ended."""
    when = local_time(incident.resolved_at or incident.updated_at)
    return say(key, language, incident=incident.id, how=incident.closing, when=when)


def _state(incident: Incident, home: Path, language: str) -> str:
    if incident.status == "open":
        return say(_open_state(incident, home), language)
    from stallwatch_rules.locale import render

    return render(incident.closing, language)


def _open_state(incident: Incident, home: Path) -> str:
    """Return the message key for the state of an open incident.

    If the run's agents in this state folder are gone, the incident is no longer watched.
    """
    from stallwatch_exporter.runs.runfolder import agent_alive, folders_of

    infos = [info for _, info in folders_of(home, incident.run)]
    left = [info for info in infos if info.end_is_unknown]
    if not left or any(map(agent_alive, infos)):
        return "open"
    return "unwatched" if any(info.ended_at is None for info in left) else "watch-ended"


def current_user() -> str:
    """Return the user at this terminal, such as ``anna@node-1``."""
    try:
        return f"{getpass.getuser()}@{socket.gethostname()}"[:100]
    except (OSError, KeyError):  # the user has no name, as in some containers
        return socket.gethostname()[:100]


_LOOKED_AT = 1000
_CANDIDATES = 8


@dataclass(frozen=True)
class NamedIncidents:
    """The incidents that match a name."""

    incidents: tuple[Incident, ...] = ()
    over: tuple[Incident, ...] = ()  #: incidents of the named run, if none of them is open
    several: tuple[str, ...] = ()  #: names with this prefix, if several match


def incidents_named(store: IncidentStore, name: str, *, single: bool = False) -> NamedIncidents:
    """Return the incident with this ID, or the relevant incidents of the run with this name.

    Relevant incidents are open or were never resolved. If `single` is true, return at most one incident.
    """
    exact = store.get(name)
    if exact is not None:
        return NamedIncidents((exact,))
    runs = _runs(store, name)
    if len(runs) > 1:
        return NamedIncidents(several=tuple(sorted(runs))[:_CANDIDATES])
    if runs and len(name) > len(runs[0]):  # the name is a prefix of an ID that begins with the run's name
        return _chosen(store.beginning_with(name, _LOOKED_AT))
    of_run = store.list(run=runs[0]) if runs else []
    # Keep open incidents, incidents of unknown state, and unresolved incidents such as the run's end.
    relevant = tuple(
        each for each in of_run if each.status == "open" or each.unwatched or each.is_final_incident
    )
    if single:
        return _chosen(relevant or of_run)
    return NamedIncidents(relevant) if relevant else NamedIncidents(over=tuple(of_run))


def run_named(store: IncidentStore, name: str) -> str:
    """If only one run has incident IDs that start with `name`, return this run. Otherwise, return `name`."""
    runs = _runs(store, name)
    return runs[0] if len(runs) == 1 else name


def _runs(store: IncidentStore, name: str) -> list[str]:
    """Return the run with this name or, if there is none, the runs whose incident IDs start with the name."""
    if not name or store.list(run=name, limit=1):
        return [name]
    return list(dict.fromkeys(incident.run for incident in store.beginning_with(name, _LOOKED_AT)))


def _chosen(found: Iterable[Incident]) -> NamedIncidents:
    """Return the only incident, or the only open incident. If neither exists, return all IDs."""
    matching = tuple(found)
    still_open = tuple(incident for incident in matching if incident.status == "open")
    if len(matching) == 1 or len(still_open) == 1:
        return NamedIncidents(still_open or matching)
    return NamedIncidents(several=tuple(sorted({incident.id for incident in matching}))[:_CANDIDATES])
