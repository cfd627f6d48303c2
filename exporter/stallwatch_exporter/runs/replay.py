"""Reprint the output of a recorded run at its original pace, with the same bytes, streams, and order."""

from __future__ import annotations

import gzip
import heapq
import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO, NamedTuple

from stallwatch_exporter.runs.copies import CriRecord, parse_record
from stallwatch_exporter.runs.runfolder import read_info
from stallwatch_exporter.runs.stand_ins import is_watched, standing_in
from stallwatch_exporter.watching.incidents import read_journal
from stallwatch_rules.stacks.records import StallStacks

# Within a file, a piece can come after a piece with a later time. The reason is that the time of a piece is
# the time of its start, but a piece is written at its end.
_LOOK_AHEAD = 1024


class NoRecording(ValueError):
    """Raised if a folder contains no log copies, or only copies that have no records."""


def recorded_files(folder: Path) -> list[Path]:
    """Return the log copies in the folder of a run."""
    names = ("*.log", "*.log.gz", "ranks/*.log", "ranks/*.log.gz")
    return sorted({path for name in names for path in folder.glob(name) if path.is_file()})


def read_records(path: Path) -> Iterator[CriRecord]:
    """Yield the records of one log copy, ordered by time. Skip lines that are not records."""
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


class RecordedStall(NamedTuple):
    """A recorded stall. `begin` (last step) and `end` (resolution) are Unix timestamps in seconds."""

    begin: float
    end: float
    stacks: StallStacks


def recorded_stalls(folder: Path) -> list[RecordedStall]:
    """Return the stalls of a run, each with its last stacks. An unresolved stall has no end."""
    begins: dict[str, float] = {}
    found: dict[str, RecordedStall] = {}
    for state in (incident for incident in read_journal(folder) if incident.kind == "stall"):
        begin = begins.setdefault(state.id, state.quiet_since)
        if state.stacks is not None:
            end = math.inf if state.resolved_at is None else state.resolved_at
            found[state.id] = RecordedStall(begin, end, state.stacks)
    return list(found.values())


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
    """Print the output of the run in `folder` at `speed` times its original pace. Return the run's exit code.

    The replay includes the period without output before the recorded end, so a stalled run also stalls in
    the replay. If an agent watches the replay, additional processes represent the ranks during a stall.
    `max_gap` is the maximum number of seconds without output. Raises `NoRecording` if there is nothing to
    print.
    """
    files = recorded_files(folder)
    if not files:
        raise NoRecording(f"{folder} contains no log copies (*.log, ranks/*.log)")
    if not speed > 0:
        raise ValueError(f"speed must be greater than 0, not {speed}")
    streams = {"stdout": out or sys.stdout.buffer, "stderr": err or sys.stderr.buffer}
    due, last_ns = clock(), None
    stalls = recorded_stalls(folder) if is_watched() else []
    current: RecordedStall | None = None

    def pass_to(time_ns: int) -> None:
        nonlocal current, due, last_ns
        since = time_ns if last_ns is None else last_ns
        stall = next(
            (stall for stall in stalls if stall.begin * 1e9 < time_ns and since < stall.end * 1e9), None
        )
        if stall is not current:
            ranks.close()
            current = stall
            if stall is not None:
                ranks.enter_context(standing_in(stall.stacks))
        gap = (time_ns - since) / 1e9 / speed
        last_ns = time_ns
        due += min(gap, max_gap) if max_gap is not None else gap
        left = due - clock()
        if left > 0.001:
            sleep(left)

    info = read_info(folder)
    with ExitStack() as ranks:
        for record in merged_records(folder):
            pass_to(record.time_ns)
            stream = streams[record.stream]
            stream.write(record.printed)
            stream.flush()
        if info is not None and info.ended_at is not None and last_ns is not None:
            pass_to(max(last_ns, int(info.ended_at * 1e9)))
    if last_ns is None and (info is None or any(path.stat().st_size for path in files)):
        names = ", ".join(path.relative_to(folder).as_posix() for path in files[:3])
        more = " and others" if files[3:] else ""
        hold = "contain" if files[1:] else "contains"
        raise NoRecording(
            f"{folder}: {names}{more} {hold} no records in the format of `stallwatch run` (time, stream, "
            "and line)"
        )
    if info is None:
        return 0
    return info.ending.exit_code or 0 if info.ending else 0
