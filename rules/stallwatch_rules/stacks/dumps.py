"""Read a dump from the torch flight recorder.

A dump shows the position of a rank in its process groups and the pending collective.

torch writes a dump file for each rank when a collective times out (2.13, ``FlightRecorder::dump`` and
``dump_json`` in torch/csrc/distributed/c10d/FlightRecorderDetail.hpp). The file is either a pickle or JSON
without frames. A rank that stalls in its own code also has a dump. This dump shows the last collective that
the rank joined, but not the code in which the rank stalls.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from msgspec.structs import replace

from stallwatch_rules.stacks.flight import operation_of, read_recorder
from stallwatch_rules.stacks.rank_activity import RankActivity, place_of
from stallwatch_rules.stacks.records import Frame, RankAnswer, Recorded, Waiting
from stallwatch_rules.stacks.spans import MOST_RANKS, spans_of
from stallwatch_rules.text.lazy import lazy

_NUMBERS = lazy(r"\b[0-9]{1,6}\b")
_LONGEST = 1_000_000  # maximum number of characters in the text that lists the ranks of a group
_MOST_ENTRIES = 100_000
_MOST_FRAMES = 200
_LISTS = (list, tuple)


class Dumped(NamedTuple):
    """The content of one rank's flight recorder dump."""

    answer: RankAnswer
    doing: RankActivity
    time: float  #: Unix time of the newest entry, in seconds, or 0 if there are no entries


def is_dump(value: Any) -> bool:
    """Return whether a value has the form of a torch dump: a version, and process groups or entries."""
    return isinstance(value, dict) and "version" in value and bool({"pg_config", "entries"} & value.keys())


def read_dump(value: Mapping[str, Any], rank: int) -> Dumped:
    """Return the content of a rank's dump. Malformed parts are ignored."""
    given = value.get("entries")
    entries = (
        [entry for entry in given[-_MOST_ENTRIES:] if isinstance(entry, dict)]
        if isinstance(given, _LISTS)
        else []
    )
    groups = _groups(value.get("pg_config"))
    world = max((max(ranks) + 1 for _, _, ranks in groups), default=0)
    recorder = read_recorder(
        {
            "status": value.get("pg_status"),
            "entries": entries,
            "groups": [
                {"names": [name, about], "ranks": spans_of(ranks)} for name, about, ranks in groups if name
            ],
            "world_size": world,
        }
    )
    recorded = _at_oldest(recorder)
    doing = _activity(recorded, entries)
    times = (entry.get("time_created_ns") for entry in entries)
    last = max((time for time in times if type(time) is int and 0 < time < 1 << 62), default=0)
    return Dumped(RankAnswer(rank, 0, recorded=recorded), doing, last / 1e9)


def _at_oldest(recorded: Recorded) -> Recorded:
    """Return the recorder's data with the counter of each group set back to the oldest pending collective.

    A program can submit collectives long before its device runs them. The device has not passed the
    oldest pending collective.
    """
    oldest: dict[int, Waiting] = {}
    for wait in sorted(recorded.waiting, key=lambda wait: wait.number):
        oldest.setdefault(wait.group, wait)
    counts = {
        group: replace(count, joined=min(count.joined, oldest[group].number)) if group in oldest else count
        for group, count in recorded.counts.items()
    }
    order = [wait for wait in recorded.waiting if oldest[wait.group] == wait]
    return replace(recorded, counts=counts, waiting=tuple(order))


def _activity(recorded: Recorded, entries: Sequence[Mapping[str, Any]]) -> RankActivity:
    """Return the activity of the rank.

    The activity is the oldest pending collective. If no collective is pending, the activity is derived from
    the last call.
    """
    last = entries[-1] if entries else {}
    if recorded.waiting:
        first = recorded.waiting[0]
        calls = (
            _frames(entry)
            for entry in entries
            if entry.get("collective_seq_id") == first.number and not entry.get("is_p2p")
        )
        frames = next(filter(None, calls), ())
        return RankActivity("collective", first.operation, place_of(frames), frames)
    frames = _frames(last)
    # Only the last point-to-point message is conclusive, because batched messages are never marked as
    # completed.
    if last.get("is_p2p") and last.get("state") != "completed":
        operation = operation_of(last).partition(" ")[0]
        return RankActivity("collective", operation or "p2p", place_of(frames), frames)
    return RankActivity("unknown", "", place_of(frames))


def _groups(config: Any) -> list[tuple[str, str, list[int]]]:
    """Return the name, description, and ranks of each process group. With gloo, the name can be empty."""
    found = []
    for name, group in config.items() if isinstance(config, dict) else ():
        ranks, about = (group.get("ranks"), group.get("desc")) if isinstance(group, dict) else (None, None)
        if isinstance(name, str) and isinstance(ranks, str) and len(ranks) <= _LONGEST:
            members = sorted({int(each) for each in _NUMBERS.findall(ranks)})
            if members and members[-1] < MOST_RANKS:
                found.append((name, about if isinstance(about, str) else "", members))
    return found


def _frames(entry: Mapping[str, Any]) -> tuple[Frame, ...]:
    """Return the stack frames of the call that created an entry, outermost frame first."""
    given = entry.get("frames")
    found = []
    for frame in given[:_MOST_FRAMES] if isinstance(given, _LISTS) else ():
        if isinstance(frame, dict):
            file, line, function = frame.get("filename"), frame.get("line"), frame.get("name")
            if type(line) is not int or not 0 <= line < 1 << 31:
                continue
            if isinstance(file, str) and isinstance(function, str):
                found.append(Frame(file, line, function))
    return tuple(reversed(found))
