"""Track the open incidents of one run by kind and rule. Report each change to the sinks only once."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar

import msgspec

from stallwatch_exporter import steady
from stallwatch_exporter.incident import Incident, Kind, Resolution, Severity, Sink, optional_methods
from stallwatch_exporter.notices import Guard
from stallwatch_exporter.watching.episodes import Episodes
from stallwatch_rules.decoding import convert, from_json
from stallwatch_rules.endings import Ending
from stallwatch_rules.files import open_regular
from stallwatch_rules.messages import Text
from stallwatch_rules.records import Phase, Primary
from stallwatch_rules.stacks.records import StallStacks
from stallwatch_rules.text.foreign_json import NOT_JSON
from stallwatch_rules.text.redact import redact

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from stallwatch_exporter.runs.runfolder import RunFolder
    from stallwatch_exporter.serving.metrics import RunMetrics

_Record = TypeVar("_Record", bound=msgspec.Struct)
_UPDATE_SECONDS = 60.0
# Fields that change often while an incident is open. They are reported at intervals, not at each change.
DRIFTING = {"stalled_seconds", "threshold_seconds", "count", "last_loss"}


class IncidentUpdate(TypedDict, total=False):
    """New facts about an open incident, as fields of `Incident`."""

    phase: Phase
    rank: int | None
    step: int | None
    total_steps: int | None
    last_loss: float | None
    stalled_since: float | None
    stalled_seconds: float | None
    threshold_seconds: float | None
    learning: bool
    at_floor: bool
    harm: str
    count: int
    evidence: list[Text]
    exception: str
    next_steps: list[Text]
    note: Text
    primary: Primary | None
    of_peers: bool
    gone_hosts: dict[str, float]
    ending: Ending | None
    stacks: StallStacks | None
    background: list[str]


def redacted(record: _Record) -> _Record:
    """Return a copy of the record in which the secrets in all strings are masked."""
    return convert(_masked(msgspec.to_builtins(record)), type(record))


def _masked(value: Any) -> Any:
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, (list, tuple)):
        return [_masked(item) for item in value]
    if isinstance(value, dict):
        return {key: _masked(item) for key, item in value.items()}
    return value


def by_wall_clock(incident: Incident, moved: float) -> Incident:
    """Return the incident with all times shifted by `moved` seconds, the change of the wall clock."""
    over, since = incident.resolved_at, incident.stalled_since
    return msgspec.structs.replace(
        incident,
        opened_at=incident.opened_at + moved,
        updated_at=incident.updated_at + moved,
        resolved_at=None if over is None else over + moved,
        stalled_since=None if since is None else since + moved,
        history=[msgspec.structs.replace(event, at=event.at + moved) for event in incident.history],
    )


def read_journal(folder: Path, most: int = sys.maxsize, *, name: str = "incidents.jsonl") -> list[Incident]:
    """Return all changes of problems that earlier agents stored in this run's folder, oldest first."""
    found: list[Incident] = []
    try:
        with open_regular(folder / name) as lines:
            lines.seek(max(0, lines.seek(0, 2) - most))
            for line in lines:
                with contextlib.suppress(*NOT_JSON):  # skip a truncated line
                    found.append(from_json(line, Incident))
    except OSError:
        pass
    return found


def read_incidents(folder: Path) -> list[Incident]:
    """Return the last state of each problem that earlier agents stored in this run's folder."""
    return list({incident.id: incident for incident in read_journal(folder)}.values())


def last_states(changes: Iterable[Incident]) -> list[Incident]:
    """Return the last state of each incident in the journals of several agents, oldest first."""
    found: dict[str, Incident] = {}
    for incident in sorted(changes, key=lambda incident: incident.updated_at):
        found.pop(incident.id, None)
        found[incident.id] = incident
    return list(found.values())


def _set(incident: Incident, **facts: Any) -> set[str]:
    """Mask secrets in `facts` and set these fields of an incident. Return the names of the changed fields."""
    fresh = redacted(msgspec.structs.replace(incident, **facts))
    changed = {name for name in facts if getattr(fresh, name) != getattr(incident, name)}
    for name in changed:
        setattr(incident, name, getattr(fresh, name))
    return changed


class IncidentManager:
    """Manage the incidents of a run, one for each kind, rule, and episode.

    `notify` receives a copy of an incident at every change. `past` contains the incidents of earlier agents
    of the run. This agent continues the episode numbers of these incidents, and takes over the incidents that
    were left open, except endings and unfixed findings, which are final.
    """

    def __init__(
        self, run: str, host: str, notify: Callable[[Incident], None], past: Iterable[Incident] = ()
    ) -> None:
        self._run = run
        self._host = host
        self._notify = notify
        self._open: dict[tuple[Kind, str], Incident] = {}
        self._episodes: dict[tuple[str, str], int] = {}
        for incident in past:
            key = incident.began_as
            self._episodes[key] = max(incident.episode, self._episodes.get(key, 0))
            if incident.status == "open" and not incident.is_final_incident:
                self._open[incident.kind, incident.rule] = incident

    def open(
        self, kind: Kind, rule: str, severity: Severity, now: float, **facts: Unpack[IncidentUpdate]
    ) -> Incident:
        """Return the open incident of this kind and rule. If there is none, open an incident."""
        key = (kind, rule)
        if key in self._open:
            return self._open[key]
        episode = self._episodes[key] = self._episodes.get(key, 0) + 1
        incident = redacted(
            Incident(
                id=f"{self._run}/{kind}/{rule}/{episode}",
                run=self._run,
                host=self._host,
                kind=kind,
                rule=rule,
                severity=severity,
                status="open",
                episode=episode,
                opened_at=now,
                updated_at=now,
                **facts,
            )
        )
        self._open[key] = incident
        self._notify(msgspec.structs.replace(incident))
        return incident

    def update(
        self,
        incident: Incident,
        now: float,
        severity: Severity | None = None,
        **facts: Unpack[IncidentUpdate],
    ) -> None:
        """Add new facts to an incident and report the change."""
        changed = _set(incident, severity=severity or incident.severity, **facts)
        if not changed:
            return
        if changed - DRIFTING or not 0 <= now - incident.updated_at < _UPDATE_SECONDS:
            incident.updated_at = now
            self._notify(msgspec.structs.replace(incident))

    def judge_anew(self, incident: Incident, rule: str) -> None:
        """Replace the rule of an open incident. The next update reports the new rule."""
        del self._open[incident.kind, incident.rule]
        incident.rule = rule
        self._open[incident.kind, rule] = incident

    def resolve(
        self, incident: Incident, now: float, resolution: Resolution, **facts: Unpack[IncidentUpdate]
    ) -> None:
        """Close an incident. The next problem with this rule opens a new incident."""
        if self._open.pop((incident.kind, incident.rule), None) is None:
            return
        _set(incident, **facts)
        incident.status = "resolved"
        incident.resolution = resolution
        # The opening time can be ahead of `now` while lines are unread.
        incident.resolved_at = incident.updated_at = max(now, incident.opened_at)
        self._notify(msgspec.structs.replace(incident))

    def fail(self, incident: Incident, now: float, rule: str, **facts: Unpack[IncidentUpdate]) -> None:
        """Turn the open finding that caused the end of the run into the incident of this end."""
        if self._open.pop((incident.kind, incident.rule), None) is None:
            return
        fresh = redacted(msgspec.structs.replace(incident, kind="ended", rule=rule, updated_at=now, **facts))
        self._open[fresh.kind, fresh.rule] = fresh
        self._notify(msgspec.structs.replace(fresh))

    def resolve_all(
        self,
        now: float,
        resolution: Resolution,
        *,
        unfixed: Collection[str] = (),
        spare: Incident | None = None,
        **facts: Unpack[IncidentUpdate],
    ) -> None:
        """When the run ends, close all open incidents except `spare`.

        Findings of the rules in `unfixed` stay open and are marked as not fixed.
        """
        for incident in self.all_open:
            if incident is spare:
                continue
            if incident.kind != "finding" or incident.rule not in unfixed:
                self.resolve(incident, now, resolution, **facts)
            else:
                incident.resolution, incident.updated_at = "unmended", now
                self._notify(msgspec.structs.replace(incident))

    def get(self, kind: Kind, rule: str) -> Incident | None:
        """Return the open incident of this kind and rule, or ``None``."""
        return self._open.get((kind, rule))

    @property
    def all_open(self) -> list[Incident]:
        """All open incidents."""
        return list(self._open.values())

    def of_kind(self, kind: Kind) -> list[Incident]:
        """Return the open incidents of this kind."""
        return [incident for incident in self._open.values() if incident.kind == kind]


class Heartbeat:
    """Call ``alive(problem)`` on every sink that has this method."""

    def __init__(self, sinks: Sequence[Any]) -> None:
        self._callbacks = optional_methods(sinks, "alive")
        self._errors = 0
        self._unread = 0

    def beat(self, errors: int, unread: int) -> None:
        """Report that the agent is alive, and how many errors and unread lines it has had so far."""
        problems = []
        if errors > self._errors:
            problems.append("an error occurred while the agent watched the run")
        if unread > self._unread:
            problems.append("lines were forwarded but not read")
        self._errors, self._unread = errors, unread
        for alive in self._callbacks:
            alive("; ".join(problems))


class Reporting:
    """Store the problems of a run in `book`, and report them as incidents that `episodes` combines."""

    def __init__(self, folder: RunFolder, metrics: RunMetrics, sinks: Sequence[Sink], guarded: Guard) -> None:
        self._folder = folder
        self._metrics = metrics
        self._sinks = sinks
        self._guarded = guarded
        self._reported: dict[str, Incident] = {}  # open incidents by ID, as last sent to the sinks
        journal = read_journal(folder.path)
        past = {trouble.id: trouble for trouble in journal}
        # Shift of the wall clock at the first report of each incident, by ID. An incident keeps its shift
        # because destinations identify an incident by its opening time.
        self._moved = dict.fromkeys(past, 0.0)
        self.book = IncidentManager(folder.run, folder.info.host, self._changed, past.values())
        self.episodes = Episodes(self._report, journal, folder.reported_until)
        for adopted in self.book.all_open:
            metrics.incident(adopted.rule, adopted.severity, True)

    def hand_over(self, sink: Sink) -> list[Incident]:
        """Report further changes only to this sink. Return the open incidents sent to the other sinks."""
        self._sinks = (sink,)
        return list(self._reported.values())

    def _changed(self, trouble: Incident) -> None:
        severity = trouble.severity
        still_open = {incident.rule for incident in self.book.all_open if incident.severity == severity}
        for rule in {trouble.rule, trouble.began_as[1]}:
            self._metrics.incident(rule, severity, rule in still_open)
        self._folder.append_incident(self._by_wall_clock(trouble))
        self.episodes.take(trouble)

    def _report(self, incident: Incident) -> None:
        incident.folder = str(self._folder.path) if self._folder.problem is None else ""
        incident.kept = self._folder.kept_elsewhere() if incident.kind == "ended" else ""
        incident = self._by_wall_clock(incident)
        self._reported[incident.id] = msgspec.structs.replace(incident)
        if incident.status == "resolved":
            del self._reported[incident.id]
        for sink in self._sinks:
            with self._guarded("reporting an incident"):
                sink(incident)

    def _by_wall_clock(self, incident: Incident) -> Incident:
        return by_wall_clock(incident, self._moved.setdefault(incident.id, steady.moved()))
