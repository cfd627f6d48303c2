"""The last numbers of a run whose agent is gone and that nobody scraped: from the ends of its log copies."""

from __future__ import annotations

import threading
from pathlib import Path

from stallwatch_dashboard.logtail import LogCopy, copies, end_of
from stallwatch_dashboard.overview import Numbers
from stallwatch_rules.lines.reader import LineReader
from stallwatch_rules.progress.tracker import ProgressTracker
from stallwatch_rules.samples import extract

_MOST_BYTES = 128 * 1024  #: of a copy's end
_MOST_COPIES = 3  #: as many are read until one tells a step: mostly the first rank speaks for all
_KEPT = 1000  #: runs


class LastWords:
    """Remembers what it read, as long as the files stay as they were. Safe for several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[Path, tuple[object, Numbers]] = {}

    def numbers(self, folder: Path) -> Numbers:
        """Step, total, loss and step time as the run's copies in `folder` told them last."""
        found = copies(folder)[:_MOST_COPIES]
        stamp = [copy.stamp for copy in found]
        with self._lock:
            known = self._known.get(folder)
        if known is None or known[0] != stamp:
            known = (stamp, _read(found))
            with self._lock:
                while len(self._known) >= _KEPT:
                    self._known.pop(next(iter(self._known)))
                self._known[folder] = known
        return known[1]


def _read(found: list[LogCopy]) -> Numbers:
    for copy in found:
        numbers = _of_end(copy)
        if numbers.step is not None:
            return numbers
    return Numbers()


def _of_end(copy: LogCopy) -> Numbers:
    tracker, told = ProgressTracker(), dict[str, float]()
    reader = LineReader(copy.path.name, copy.rank)
    for line in [*reader.feed(end_of(copy.path, _MOST_BYTES)), *reader.finish()]:
        sample = extract(line)
        tracker.add(sample, line)
        if sample is not None:
            told |= sample.values
    return Numbers(
        step=tracker.last_step,
        total_steps=tracker.total_steps,
        loss=told.get("loss"),
        step_seconds=told.get("step_seconds"),
        memory_bytes=told.get("memory_allocated_bytes", told.get("memory_peak_bytes")),
    )
