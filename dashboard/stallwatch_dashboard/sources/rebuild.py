"""The numbers of a run that nobody scraped, read back from its log copies."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pandas as pd

from stallwatch_dashboard.frames import COLUMNS, RunFrames, empty, thin
from stallwatch_dashboard.logtail import LogCopy, copies
from stallwatch_rules.catalogue import load_catalogue
from stallwatch_rules.lines import LineReader
from stallwatch_rules.reading import RunReading
from stallwatch_rules.records import Line, Match, Sample

MOST_BYTES = 512 * 1024 * 1024  #: of one run's copies; what is beyond is left out and said
INVALIDATED = "zero3-trace-cache-invalidated"
_CHUNK = 1024 * 1024
_KEPT = 16  #: runs whose frames are remembered

_Signature = tuple[tuple[str, int, int], ...]


class Rebuilder:
    """Remembers what it read, as long as the files stay as they were."""

    def __init__(self, rules: Sequence[Path] = ()) -> None:
        self._rules = tuple(rules)
        self._lock = threading.Lock()
        self._known: dict[Path, tuple[_Signature, RunFrames]] = {}

    def frames(self, folder: Path) -> RunFrames:
        """The frames of the run in `folder`."""
        found = copies(folder)
        signature = tuple(_stamp(copy.path) for copy in found)
        with self._lock:
            known = self._known.get(folder)
            if known is None or known[0] != signature:
                while len(self._known) >= _KEPT:
                    self._known.pop(next(iter(self._known)))
                known = self._known[folder] = (signature, rebuild(found, self._rules))
            return known[1]


def rebuild(found: Sequence[LogCopy], rules: Sequence[Path] = (), most_bytes: int = MOST_BYTES) -> RunFrames:
    """Mine the copies as the agent did, and put what they tell on the time line."""
    reading = RunReading(load_catalogue(rules))
    samples: list[Sample] = []
    matches: list[Match] = []
    warnings: list[Line] = []
    left = most_bytes
    for copy in found:
        reader = LineReader(copy.path.name, copy.rank)
        for chunk in _chunks(copy.path, left):
            left -= len(chunk)
            observed = reading.feed(reader.feed(chunk))
            samples += observed.samples
            matches += [match for match in observed.matches if match.rule == INVALIDATED]
            warnings += observed.warnings
        observed = reading.feed(reader.finish())
        samples += observed.samples
        matches += [match for match in observed.matches if match.rule == INVALIDATED]
        warnings += observed.warnings
    notes = (f"Only the first {most_bytes // 1024**2} MiB of its log copies were read.",) if left <= 0 else ()
    return to_frames(samples, matches, warnings, notes)


def to_frames(
    samples: Sequence[Sample], matches: Sequence[Match], warnings: Sequence[Line], notes: tuple[str, ...] = ()
) -> RunFrames:
    """Samples, invalidations and warnings as the frames that a scraped run has."""
    timed = [sample for sample in samples if sample.time is not None]
    steps = _frame((None, s.time, float(s.step)) for s in timed if s.step is not None)
    steps["v"] = steps["v"].cummax()
    by_rank = _frame((s.rank, s.time, float(s.step)) for s in timed if s.step is not None)
    told = _values(timed, "step_seconds")
    kind, memory = "allocated", _values(timed, "memory_allocated_bytes")
    if memory.empty:
        kind, memory = "peak", _values(timed, "memory_peak_bytes")
    invalidations = _counted(match.line.time for match in matches)
    warned = _counted(line.time for line in warnings)
    times = [sample.time for sample in timed if sample.time is not None]
    return RunFrames(
        steps=thin(steps),
        loss=thin(_values(timed, "loss")),
        step_seconds=thin(told if not told.empty else _between(by_rank)),
        memory=thin(memory),
        memory_kind=kind,
        invalidations=thin(invalidations),
        warnings=thin(warned),
        total_steps=max((s.total_steps for s in samples if s.total_steps), default=None),
        last_step_at=float(steps["t"].max()) if not steps.empty else None,
        seen=max(times, default=None),
        rebuilt=True,
        notes=notes,
    )


def _values(samples: Sequence[Sample], name: str) -> pd.DataFrame:
    return _frame((s.rank, s.time, s.values[name]) for s in samples if name in s.values)


def _between(steps: pd.DataFrame) -> pd.DataFrame:
    """Seconds a step from the times at which each rank reported its steps."""
    done = steps.groupby("rank", dropna=False)[["t", "v"]].diff()
    fresh = done["v"] > 0
    out = steps[fresh].assign(v=(done["t"] / done["v"])[fresh])
    return out.reset_index(drop=True)


def _counted(times: Iterator[float | None]) -> pd.DataFrame:
    known = sorted(time for time in times if time is not None)
    return _frame((None, time, float(count)) for count, time in enumerate(known, 1))


def _frame(rows: Iterator[tuple[int | None, float | None, float]]) -> pd.DataFrame:
    found = list(rows)
    if not found:
        return empty()
    frame = pd.DataFrame(found, columns=list(COLUMNS)).astype(COLUMNS)
    return frame.sort_values(["rank", "t"], kind="stable", ignore_index=True)


def _chunks(path: Path, most: int) -> Iterator[bytes]:
    try:
        with path.open("rb") as copy:
            while most > 0 and (chunk := copy.read(min(_CHUNK, most))):
                most -= len(chunk)
                yield chunk
    except OSError:
        return


def _stamp(path: Path) -> tuple[str, int, int]:
    try:
        stat = path.stat()
    except OSError:
        return (path.name, 0, 0)
    return (path.name, stat.st_size, stat.st_mtime_ns)
