"""Which incidents a person means: by id, by run, or by the beginning of either."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stallwatch_alerts.store import IncidentStore
    from stallwatch_exporter.incident import Incident

_LOOKED_AT = 1000
_SHOWN = 8


@dataclass(frozen=True)
class Meant:
    """What was found under a name."""

    incidents: tuple[Incident, ...] = ()
    over: tuple[Incident, ...] = ()  #: of the run that was named, where none of its incidents is open
    several: tuple[str, ...] = ()  #: names that begin so, where it is not clear which is meant


def meant(store: IncidentStore, name: str, *, one: bool = False) -> Meant:
    """The incident of this id, or of a run all that somebody may care for; with `one`, but one of them."""
    exact = store.get(name)
    if exact is not None:
        return Meant((exact,))
    of_run = store.list(run=name)
    if not of_run and name:
        found = store.beginning_with(name, _LOOKED_AT)
        runs = _names(incident.run for incident in found)
        if len(runs) > 1:
            return Meant(several=tuple(sorted(runs))[:_SHOWN])
        if runs and len(name) > len(runs[0]):  # the beginning of an id: behind the run comes a slash
            return _chosen(found)
        of_run = store.list(run=runs[0]) if runs else []
    caring = tuple(incident for incident in of_run if _is_cared_for(incident))
    if one:
        return _chosen(caring or of_run)
    return Meant(caring) if caring else Meant(over=tuple(of_run))


def run_meant(store: IncidentStore, name: str) -> str:
    """The run of this name, else the only one whose name begins so; the name itself where there is none."""
    if store.list(run=name, limit=1):
        return name
    runs = _names(incident.run for incident in store.beginning_with(name, _LOOKED_AT))
    return runs[0] if len(runs) == 1 else name


def _chosen(found: Iterable[Incident]) -> Meant:
    """The only one, or the only one that is open."""
    among = tuple(found)
    still_open = tuple(incident for incident in among if incident.status == "open")
    if len(among) == 1 or len(still_open) == 1:
        return Meant(still_open or among)
    return Meant(several=tuple(sorted(_names(incident.id for incident in among)))[:_SHOWN])


def _is_cared_for(incident: Incident) -> bool:
    """Open, or nobody knows whether it is over, or what the run left: its end, a broken checkpoint."""
    return incident.status == "open" or incident.unwatched or incident.is_last_word


def _names(given: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(given))
