"""Print a recorded run again at its own pace: the same bytes, to the same streams, in the same order."""

from __future__ import annotations

import gzip
import heapq
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from stallwatch_exporter.runs.copies import CriRecord, parse_record
from stallwatch_exporter.runs.runfolder import read_info
from stallwatch_exporter.runs.stand_ins import is_watched, standing_in
from stallwatch_exporter.watching.incidents import read_incidents
from stallwatch_rules.stacks.records import StallStacks

# Within a file a piece may follow a later piece: it has the time of its start, and is written at its end.
_LOOK_AHEAD = 1024


class NoRecording(ValueError):
    """The folder contains no log copies, or none with records."""


def recorded_files(folder: Path) -> list[Path]:
    """Return the log copies in one run's folder."""
    names = ("*.log", "*.log.gz", "ranks/*.log", "ranks/*.log.gz")
    return sorted({path for name in names for path in folder.glob(name) if path.is_file()})


def read_records(path: Path) -> Iterator[CriRecord]:
    """Yield the records of one copy in the order of their times; other lines are skipped."""
    ahead: list[tuple[int, int, CriRecord]] = []
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as lines:
        for number, line in enumerate(lines):
            record = parse_record(line)
            if record is not None:
                heapq.heappush(ahead, (record.time_ns, number, record))
            if len(ahead) > _LOOK_AHEAD:
                yield heapq.heappop(ahead)[2]
    while ahead:
        yield heapq.heappop(ahead)[2]


def merged_records(folder: Path) -> Iterator[CriRecord]:
    """Yield all records of a run in the order in which they were printed."""
    return heapq.merge(*map(read_records, recorded_files(folder)), key=lambda record: record.time_ns)


def recorded_stacks(folder: Path) -> StallStacks | None:
    """Return the stacks of the last stall of a run."""
    found = [one.stacks for one in read_incidents(folder) if one.kind == "stall" and one.stacks is not None]
    return found[-1] if found else None


def replay(
    folder: Path,
    speed: float = 1.0,
    *,
    out: BinaryIO | None = None,
    err: BinaryIO | None = None,
    max_gap: float | None = None,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> int:
    """Print the run in `folder`, `speed` times as fast; return its exit code.

    The silence before the recorded end is replayed, too: a run that hung hangs again, and if it is watched,
    processes stand in for its ranks. `max_gap` (seconds of waiting) shortens silences. Raises `NoRecording`
    if there is nothing to print.
    """
    files = recorded_files(folder)
    if not files:
        raise NoRecording(f"{folder} holds no log copies (*.log, ranks/*.log)")
    if not speed > 0:
        raise ValueError(f"speed must be above 0, not {speed}")
    streams = {"stdout": out or sys.stdout.buffer, "stderr": err or sys.stderr.buffer}
    due, last_ns = clock(), None

    def wait_until(time_ns: int) -> None:
        nonlocal due, last_ns
        gap = 0.0 if last_ns is None else (time_ns - last_ns) / 1e9 / speed
        last_ns = time_ns
        due += min(gap, max_gap) if max_gap is not None else gap
        left = due - clock()
        if left > 0.001:
            sleep(left)

    stacks = recorded_stacks(folder) if is_watched() else None
    for record in merged_records(folder):
        if stacks is not None and last_ns is not None and record.time_ns > stacks.time * 1e9:
            with standing_in(stacks):
                wait_until(record.time_ns)
            stacks = None
        wait_until(record.time_ns)
        stream = streams[record.stream]
        stream.write(record.printed)
        stream.flush()
    info = read_info(folder)
    if last_ns is None and (info is None or any(path.stat().st_size for path in files)):
        names = ", ".join(path.relative_to(folder).as_posix() for path in files[:3])
        more = " and others" if files[3:] else ""
        hold = "hold" if files[1:] else "holds"
        raise NoRecording(
            f"{folder}: {names}{more} {hold} no records as `stallwatch run` writes them (a time, the stream, "
            "then the line)"
        )
    if info is None:
        return 0
    if info.ended_at is not None and last_ns is not None:
        wait_until(max(last_ns, int(info.ended_at * 1e9)))
    return info.ending.exit_code or 0 if info.ending else 0
