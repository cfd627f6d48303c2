"""From what is wrong with a run to its sinks: every trouble is kept and counted, every incident reported."""

from __future__ import annotations

from collections.abc import Sequence

from stallwatch_exporter import steady
from stallwatch_exporter.incident import Incident, Sink
from stallwatch_exporter.runs.runfolder import RunFolder
from stallwatch_exporter.serving.metrics import RunMetrics
from stallwatch_exporter.watching.episodes import Episodes
from stallwatch_exporter.watching.guard import Guard
from stallwatch_exporter.watching.incidents import IncidentBook, by_wall_clock, read_journal


class Reporting:
    """The `book` of a run's troubles; ``flush`` reports what became of the incidents that they make."""

    def __init__(self, folder: RunFolder, metrics: RunMetrics, sinks: Sequence[Sink], guarded: Guard) -> None:
        self._folder = folder
        self._metrics = metrics
        self._sinks = sinks
        self._guarded = guarded
        journal = read_journal(folder.path)
        past = {trouble.id: trouble for trouble in journal}
        # By id: how far the wall clock had been set at the first report. An incident is recognised by when it
        # opened, so all its times are by that clock.
        self._moved = dict.fromkeys(past, 0.0)
        self.book = IncidentBook(folder.run, folder.info.host, self._changed, past.values())
        self._episodes = Episodes(self._report, journal)
        for adopted in self.book.all_open:
            metrics.incident(adopted.rule, adopted.severity, True)

    def flush(self) -> None:
        """Report what changed since the last time."""
        self._episodes.flush()

    def incident_of(self, trouble: Incident) -> Incident:
        """The incident that the trouble is part of."""
        return self._episodes.incident_of(trouble)

    def _changed(self, trouble: Incident) -> None:
        rule, severity = trouble.rule, trouble.severity
        for name in {rule, trouble.began_as[1]}:
            self._metrics.incident(name, severity, self.book.has_open(name, severity))
        self._folder.append_incident(self._by_wall_clock(trouble))
        self._episodes.take(trouble)

    def _report(self, incident: Incident) -> None:
        incident.folder = str(self._folder.path) if self._folder.problem is None else ""
        incident = self._by_wall_clock(incident)
        for sink in self._sinks:
            with self._guarded("telling of an incident"):
                sink(incident)

    def _by_wall_clock(self, incident: Incident) -> Incident:
        return by_wall_clock(incident, self._moved.setdefault(incident.id, steady.moved()))
