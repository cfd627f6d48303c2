"""Logs of training with progress bars, and the tracker that has read them."""

from __future__ import annotations

from collections.abc import Iterable

from stallwatch_rules.progress.tracker import ProgressTracker
from stallwatch_rules.records import Line
from stallwatch_rules.samples import extract


def track(lines: Iterable[Line], tracker: ProgressTracker | None = None) -> ProgressTracker:
    tracker = tracker or ProgressTracker()
    for line in lines:
        tracker.add(extract(line), line)
    return tracker


def log(
    *texts: str, rank: int | None = None, source: str = "a.log", times: Iterable[float] = ()
) -> list[Line]:
    clock = iter(times)
    return [Line(text, source, number, rank, next(clock, None)) for number, text in enumerate(texts, 1)]


def bar(done: int, total: int, seconds: int = 0) -> str:
    elapsed = f"{seconds // 60:02}:{seconds % 60:02}"
    return f"{done / total:4.0%}|##        | {done}/{total} [{elapsed}<00:09,  1.00s/it]"
