"""The numbers of a run that nobody scraped, read back from its log copies."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd

from stallwatch_dashboard.frames import COLUMNS, RunFrames, empty, of_run, thin
from stallwatch_dashboard.logtail import LogCopy, copies
from stallwatch_rules.diagnosis.findings import TRACE_CACHE
from stallwatch_rules.lines.reader import LineReader
from stallwatch_rules.matching.matcher import Matcher
from stallwatch_rules.pages.catalogue import load_catalogue
from stallwatch_rules.progress.tracker import ProgressTracker
from stallwatch_rules.reading import RunReading
from stallwatch_rules.records import Line, Sample
from stallwatch_rules.samples import extract

MOST_BYTES = 128 * 1024 * 1024  #: of one run's copies; what is beyond is left out and said
_CHUNK = 1024 * 1024
_KEPT = 16  #: runs whose frames are remembered

Row = tuple[int | None, float, float]  # rank, time, value


class Rebuilder:
    """Remembers what it read, as long as the files stay as they were."""

    def __init__(self, rules: Sequence[Path] = ()) -> None:
        self._rules = tuple(rules)
        self._lock = threading.Lock()
        self._known: dict[Path, tuple[object, RunFrames]] = {}

    def frames(self, folder: Path, before: float | None = None) -> RunFrames:
        """The frames of the run in `folder`, or the part `before` a time: that one never changes again."""
        found = copies(folder)
        signature: object = before if before is not None else [copy.stamp for copy in found]
        with self._lock:
            known = self._known.get(folder)
            if known is None or known[0] != signature:
                while len(self._known) >= _KEPT:
                    self._known.pop(next(iter(self._known)))
                known = self._known[folder] = (signature, rebuild(found, self._rules))
            return known[1]


def rebuild(found: Sequence[LogCopy], rules: Sequence[Path] = (), most_bytes: int = MOST_BYTES) -> RunFrames:
    """Mine the copies as the agent did, and put what they tell on the time line."""
    catalogue = load_catalogue(rules)
    matcher = Matcher(catalogue)
    told = Told()
    left = most_bytes
    for copy in found:
        reading, tracker = RunReading(catalogue, matcher), ProgressTracker()
        reader = LineReader(copy.path.name, copy.rank)
        for chunk in _chunks(copy.path, left):
            left -= len(chunk)
            told.take(reader.feed(chunk), reading, tracker)
        told.take(reader.finish(), reading, tracker)
        told.total_steps = max(told.total_steps or 0, tracker.total_steps or 0) or None
    if left <= 0:
        told.notes.append(f"Only the first {most_bytes // 1024**2} MiB of its log copies were read.")
    return to_frames(told)


@dataclass
class Told:
    """What the lines of a run told, on its way to frames."""

    samples: list[Sample] = field(default_factory=list)
    steps: list[Row] = field(default_factory=list)
    invalidations: list[float] = field(default_factory=list)
    warnings: list[float] = field(default_factory=list)
    total_steps: int | None = None
    notes: list[str] = field(default_factory=list)

    def take(self, lines: Sequence[Line], reading: RunReading, tracker: ProgressTracker) -> None:
        """Read lines of one source, in their order."""
        for line in lines:  # the tracker knows a training's step from an evaluation's progress bar
            if line.time is not None and tracker.add(extract(line), line) and tracker.last_step is not None:
                self.steps.append((line.rank, line.time, float(tracker.last_step)))
        observed = reading.feed(lines)
        self.samples += [sample for sample in observed.samples if sample.values]
        self.invalidations += [
            match.line.time for match in observed.matches if match.rule == TRACE_CACHE and match.line.time
        ]
        self.warnings += [line.time for line in observed.warnings if line.time]


def to_frames(told: Told) -> RunFrames:
    """The frames that a scraped run has."""
    in_time = _frame(told.steps).sort_values("t", kind="stable", ignore_index=True)
    steps = of_run(in_time["t"], in_time["v"].cummax()).drop_duplicates("v")
    measured = _values(told.samples, "step_seconds")
    kind, memory = "allocated", _values(told.samples, "memory_allocated_bytes")
    if memory.empty:
        kind, memory = "peak", _values(told.samples, "memory_peak_bytes")
    times = [sample.time for sample in told.samples if sample.time is not None] + told.warnings
    return RunFrames(
        steps=thin(steps),
        loss=thin(_values(told.samples, "loss")),
        step_seconds=thin(_between(steps) if len(steps) > 1 else measured),
        memory=thin(memory),
        memory_kind=kind,
        invalidations=thin(_counted(told.invalidations)),
        warnings=thin(_counted(told.warnings)),
        total_steps=told.total_steps,
        last_step_at=float(steps["t"].max()) if not steps.empty else None,
        seen=max(times, default=None),
        rebuilt=True,
        notes=tuple(told.notes),
    )


def _values(samples: Sequence[Sample], name: str) -> pd.DataFrame:
    return _frame([(s.rank, s.time, s.values[name]) for s in samples if s.time and name in s.values])


def _between(steps: pd.DataFrame) -> pd.DataFrame:
    """Seconds a step from the times at which steps were reported."""
    done = steps[["t", "v"]].diff()
    fresh = done["v"] > 0
    return steps[fresh].assign(v=(done["t"] / done["v"])[fresh]).reset_index(drop=True)


def _counted(times: Sequence[float]) -> pd.DataFrame:
    return _frame([(None, time, float(count)) for count, time in enumerate(sorted(times), 1)])


def _frame(rows: Sequence[Row]) -> pd.DataFrame:
    if not rows:
        return empty()
    frame = pd.DataFrame(rows, columns=list(COLUMNS)).astype(COLUMNS)
    return frame.sort_values(["rank", "t"], kind="stable", ignore_index=True)


def _chunks(path: Path, most: int) -> Iterator[bytes]:
    try:
        with path.open("rb") as copy:
            while most > 0 and (chunk := copy.read(min(_CHUNK, most))):
                most -= len(chunk)
                yield chunk
    except OSError:
        return
