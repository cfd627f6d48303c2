"""What torch's flight recorder told in a rank, read.

Its numbers count the collectives of a process group in the order in which the rank joined them, so a rank
with a smaller number has not come to the collective that the others wait in. torch 2.13 writes them as text.
"""

from __future__ import annotations

from typing import Any

from stallwatch_rules.stacks.records import Counts, Recorded, Waiting
from stallwatch_rules.text.lazy import lazy

_NUMBERS = lazy(r"\b[0-9]{1,9}\b")
_DIGITS = lazy(r"-1|[0-9]{1,18}")
_NONE_YET = -1  # a counter before its first collective


def read_recorder(told: Any) -> Recorded:
    """The recorder's counters and what is under way; what is malformed is left out."""
    if not isinstance(told, dict):
        return Recorded()
    counts = {}
    for group, status in _items(told.get("status")):
        joined, done = (
            _number(status, "last_enqueued_collective"),
            _number(status, "last_completed_collective"),
        )
        if (number := _whole(group)) is not None and joined is not None:
            counts[number] = Counts(joined, _NONE_YET if done is None else done)
    members = {
        name: tuple(int(rank) for rank in _NUMBERS.findall(str(group.get("ranks", ""))))
        for name, group in _items(told.get("groups"))
        if isinstance(group, dict)
    }
    entries = told.get("entries")
    waiting = [_waiting(entry, counts) for entry in (entries if isinstance(entries, list) else ())]
    return Recorded(
        world_size=_whole(told.get("world_size")) or 0,
        counts=counts,
        members={name: ranks for name, ranks in members.items() if ranks},
        waiting=tuple(one for one in waiting if one is not None),
    )


def _waiting(entry: Any, counts: dict[int, Counts]) -> Waiting | None:
    """The collective of an entry, if it is not done."""
    if not isinstance(entry, dict) or entry.get("is_p2p") or entry.get("state") == "completed":
        return None
    group, number = _whole(entry.get("pg_id")), _whole(entry.get("collective_seq_id"))
    if group is None or number is None or (group in counts and number <= (counts[group].done or 0)):
        return None
    named = entry.get("process_group")
    name = str(named[0]) if isinstance(named, list) and named else str(group)
    # Such as "nccl:all_reduce" and "nccl:_all_gather_base".
    operation = str(entry.get("profiling_name") or "").rpartition(":")[2].strip("_").removesuffix("_base")
    return Waiting(group, name, number, operation)


def _number(status: Any, name: str) -> int | None:
    return _whole(status.get(name), _NONE_YET) if isinstance(status, dict) else None


def _whole(value: Any, least: int = 0) -> int | None:
    """The value as an integer, if it is one or its digits, and no smaller than that."""
    is_integral = isinstance(value, float) and value.is_integer()
    if is_integral or (isinstance(value, str) and _DIGITS.fullmatch(value)):
        value = int(value)
    return value if type(value) is int and least <= value < 10**18 else None


def _items(value: Any) -> list[tuple[str, Any]]:
    return [(str(key), each) for key, each in value.items()] if isinstance(value, dict) else []
