"""If a run was not scraped, read its metrics from its log copies."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import count
from pathlib import Path

import pandas as pd

from stallwatch_dashboard.data.frames import COLUMNS, RunFrames, empty, of_run
from stallwatch_dashboard.data.log_copies import LogCopy, copies
from stallwatch_dashboard.data.overview import Numbers
from stallwatch_dashboard.data.summaries import trend_of
from stallwatch_logs.portions import file_chunks
from stallwatch_rules.diagnosis.findings import TRACE_CACHE
from stallwatch_rules.files import open_regular
from stallwatch_rules.lines.reader import LineReader
from stallwatch_rules.matching.matcher import Matcher
from stallwatch_rules.messages import Message, message
from stallwatch_rules.pages.catalogue import load_catalogue
from stallwatch_rules.progress.tracker import ProgressTracker
from stallwatch_rules.reading import RunReading
from stallwatch_rules.records import Line, Sample
from stallwatch_rules.samples import extract

MOST_BYTES = 128 * 1024 * 1024  #: maximum number of bytes read from one run's log copies
_CHUNK = 1024 * 1024
_KEPT_FRAMES = 16  #: number of runs whose frames are cached

Row = tuple[int | None, float, float]  # rank, time, value


def rebuilt_frames(*folders: Path, rules: tuple[str, ...] = (), before: float | None = None) -> RunFrames:
    """Return the frames of the run in `folders`. Set `before` if only the part before that time is needed.

    The result is cached until the files change. If `before` is set, the result is cached permanently, because
    the part before that time never changes.
    """
    version = before if before is not None else tuple(copy.stamp for copy in copies(*folders))
    with _reading:  # another thread waits, and then uses the cached result
        return _remembered_frames(folders, rules, version)


_reading = threading.Lock()


@lru_cache(_KEPT_FRAMES)
def _remembered_frames(folders: tuple[Path, ...], rules: tuple[str, ...], _version: object) -> RunFrames:
    return rebuild(copies(*folders), [Path(folder) for folder in rules])


def rebuild(found: Sequence[LogCopy], rules: Sequence[Path] = (), most_bytes: int = MOST_BYTES) -> RunFrames:
    """Parse the log copies in the same way as the agent did, and return their values by time."""
    catalogue = load_catalogue(rules)
    matcher = Matcher(catalogue)
    result = LogNumbers()
    left = most_bytes
    for copy in found:
        reading, tracker = RunReading(catalogue, matcher), ProgressTracker()
        reader = LineReader(copy.path.name, copy.rank)
        for chunk in _chunks(copy.path, left):
            left -= len(chunk)
            result.take(reader.feed(chunk), reading, tracker)
        result.take(reader.finish(), reading, tracker)
        result.total_steps = max(result.total_steps or 0, tracker.total_steps or 0) or None
    if left <= 0:
        result.notes.append(message("dashboard.copies_cut", mebibytes=most_bytes // 1024**2))
    return to_frames(result)


@dataclass
class LogNumbers:
    samples: list[Sample] = field(default_factory=list)
    steps: list[Row] = field(default_factory=list)
    invalidations: list[float] = field(default_factory=list)
    warnings: list[float] = field(default_factory=list)
    total_steps: int | None = None
    notes: list[Message] = field(default_factory=list)

    def take(self, lines: Sequence[Line], reading: RunReading, tracker: ProgressTracker) -> None:
        for line in lines:  # the tracker distinguishes training steps from an evaluation's progress bar
            if line.time is not None and tracker.add(extract(line), line) and tracker.last_step is not None:
                self.steps.append((line.rank, line.time, float(tracker.last_step)))
        observed = reading.feed(lines)
        self.samples += [sample for sample in observed.samples if sample.values]
        self.invalidations += [
            match.line.time for match in observed.matches if match.rule == TRACE_CACHE and match.line.time
        ]
        self.warnings += [line.time for line in observed.warnings if line.time]


def to_frames(numbers: LogNumbers) -> RunFrames:
    in_time = _frame(numbers.steps).sort_values("t", kind="stable", ignore_index=True)
    steps = of_run(in_time["t"], in_time["v"].cummax()).drop_duplicates("v")
    measured = _values(numbers.samples, "step_seconds")
    kind, memory = "allocated", _values(numbers.samples, "memory_allocated_bytes")
    if memory.empty:
        kind, memory = "peak", _values(numbers.samples, "memory_peak_bytes")
    return RunFrames(
        steps=thin(steps),
        loss=thin(_values(numbers.samples, "loss")),
        grad_norm=thin(_values(numbers.samples, "grad_norm")),
        learning_rate=thin(_values(numbers.samples, "learning_rate")),
        step_seconds=thin(_between(steps) if len(steps) > 1 else measured),
        memory=thin(memory),
        memory_kind=kind,
        invalidations=thin(_counted(numbers.invalidations)),
        warnings=thin(_counted(numbers.warnings)),
        total_steps=numbers.total_steps,
        last_step_at=float(steps["t"].max()) if not steps.empty else None,
        rebuilt=True,
        notes=tuple(numbers.notes),
    )


def thin(frame: pd.DataFrame, points: int = 2000) -> pd.DataFrame:
    """Return about `points` of the rows. Each time span keeps its lowest and highest values."""
    if len(frame) <= points:
        return frame
    groups = frame["rank"].nunique(dropna=False)
    first, last = frame["t"].min(), frame["t"].max()
    spans = ((frame["t"] - first) / ((last - first) or 1.0) * max(1, points // (2 * groups))).astype(int)
    by = frame["v"].groupby([frame["rank"].astype("string").fillna(""), spans])
    kept = sorted({*by.idxmin().dropna(), *by.idxmax().dropna(), frame.index[-1]})
    return frame.loc[kept].reset_index(drop=True)


def numbers_from_frames(found: RunFrames) -> Numbers:
    taken = found.step_seconds.sort_values("t", kind="stable")["v"].cumsum()
    trend = trend_of(found.loss["v"], [(0.0, 0.0), *zip(taken, count(1.0))])
    return replace(
        trend,
        step=_last(found.steps),
        total_steps=found.total_steps,
        loss=_last(found.loss),
        invalidations=_last(found.invalidations),
        memory_bytes=float(found.memory["v"].max()) if not found.memory.empty else None,
    )


def _last(frame: pd.DataFrame) -> float | None:
    return None if frame.empty else float(frame.sort_values("t", kind="stable")["v"].iloc[-1])


def _values(samples: Sequence[Sample], name: str) -> pd.DataFrame:
    return _frame([(s.rank, s.time, s.values[name]) for s in samples if s.time and name in s.values])


def _between(steps: pd.DataFrame) -> pd.DataFrame:
    """Return the seconds per step, computed from the times at which the log reports steps."""
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
    with suppress(OSError), open_regular(path) as copy:
        yield from file_chunks(copy.fileno(), 0, most, _CHUNK)
