"""Read the report from torch about the process groups of one rank.

The collectives of a process group are numbered in the order in which a rank joins them. Therefore, a rank
with a smaller number has not reached the collective in which the other ranks wait. All backends count the
collectives that a rank joined. The torch flight recorder also counts completed collectives. torch 2.13 writes
these numbers as text.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from msgspec.structs import replace

from stallwatch_rules.stacks.axes import axis_of
from stallwatch_rules.stacks.records import Axis, Counts, Recorded, Waiting
from stallwatch_rules.stacks.spans import ranks_in
from stallwatch_rules.text.lazy import lazy

_DIGITS = lazy(r"-1|[0-9]{1,18}")
_NONE_YET = -1  # value of a counter before the first collective
_MOST_BEHIND = 64
_MOST_GROUPS = 4096


def read_recorder(answer: Any) -> Recorded:
    """Return the process groups, counters, and pending collectives of a rank. Malformed parts are ignored."""
    if not isinstance(answer, dict):
        return Recorded()
    counts: dict[int, Counts] = {}
    for group, status in _items(answer.get("status")):
        if not isinstance(status, dict):
            continue
        joined = _whole(status.get("last_enqueued_collective"), _NONE_YET)
        done = _whole(status.get("last_completed_collective"), _NONE_YET)
        if (number := _whole(group)) is not None and joined is not None:
            counts[number] = Counts(joined, _NONE_YET if done is None else done)
    entries = _list(answer.get("entries"))
    waiting = [wait for wait in (_waiting(entry, counts) for entry in entries) if wait is not None]
    world = _whole(answer.get("world_size")) or 0
    groups = _groups(answer.get("groups"), world)
    names: dict[int, str] = {}
    if any(group.joined is not None for group in groups):
        names = dict(enumerate(group.name for group in groups))
        numbers = {name: number for number, name in names.items()}
        recorded = _recorded_as(groups, counts, entries)
        finished = {name: counts[number].done for number, name in recorded.items()}
        counts = {
            numbers[group.name]: Counts(group.joined, _not_above(group.joined, finished.get(group.name)))
            for group in groups
            if group.joined is not None
        }
        unknown = len(groups)
        waiting = [replace(wait, group=numbers.get(wait.name, unknown + wait.group)) for wait in waiting]
    return Recorded(
        world_size=world,
        counts=counts,
        members={group.name: group.ranks for group in groups if group.ranks},
        waiting=tuple(waiting),
        names=names,
        axes={group.name: group.axis for group in groups if group.axis},
    )


def _not_above(joined: int, done: int | None) -> int | None:
    """Return the number of completed collectives, or ``None`` if it exceeds the number of joined collectives.

    A larger number also includes NCCL send operations (``ProcessGroupNCCL::workEnqueue`` and ``initWork`` of
    torch 2.13, ``seqP2P_``).
    """
    return max(done, 0) if done is not None and done <= joined else None


class _Group(NamedTuple):
    """A process group, as one of its members reports the group."""

    name: str
    ranks: tuple[int, ...]
    axis: Axis = ""
    joined: int | None = None
    recorded: int | None = None  # number of the group in the recorder (``None`` if this number is uncertain)


def _groups(answer: Any, world: int) -> list[_Group]:
    """Return the process groups in the response of a probe or recorder, in the order of their creation."""
    found = []
    for group in _list(answer)[:_MOST_GROUPS]:
        if isinstance(group, dict) and (names := [str(name) for name in _list(group.get("names"))]):
            members = ranks_in(str(group.get("ranks") or ""))
            axis = axis_of(names[1:], whole=0 < world == len(members))
            joined, recorded = _whole(group.get("joined")), _whole(group.get("recorded"))
            found.append(_Group(names[0], members, axis, joined, recorded))
    return found


def _recorded_as(groups: list[_Group], counts: dict[int, Counts], entries: list[Any]) -> dict[int, str]:
    """Return a mapping from group numbers in the recorder to group names. Uncertain names are omitted."""
    numbered = ((_whole(entry.get("pg_id")), entry) for entry in entries if isinstance(entry, dict))
    sure = {
        number: _name(entry, number) for number, entry in numbered if number is not None and number in counts
    }
    likely = {
        group.recorded: group for group in groups if group.recorded in counts and group.recorded is not None
    }
    for number, group in likely.items():
        # Between the queries of the recorder and of the group, the rank can join more collectives. For
        # pipelines, the counter of the group also includes messages.
        behind = (group.joined or 0) - counts[number].joined
        if sure.get(number, group.name) != group.name or (
            group.axis != "pp" and not 0 <= behind <= _MOST_BEHIND
        ):
            return sure
    return {**{number: group.name for number, group in likely.items()}, **sure}


def _waiting(entry: Any, counts: dict[int, Counts]) -> Waiting | None:
    """Return the collective that an entry describes, or ``None`` for completed or malformed entries."""
    if not isinstance(entry, dict) or entry.get("is_p2p") or entry.get("state") == "completed":
        return None
    group, number = _whole(entry.get("pg_id")), _whole(entry.get("collective_seq_id"))
    if group is None or number is None or (group in counts and number <= (counts[group].done or 0)):
        return None
    operation = operation_of(entry).strip("_").removesuffix("_base")
    return Waiting(group, _name(entry, group), number, operation)


def operation_of(entry: Mapping[str, Any]) -> str:
    """Return the operation of an entry: ``_all_gather_base`` if the name is ``nccl:_all_gather_base``."""
    named = entry.get("profiling_name")
    return named.rpartition(":")[2] if isinstance(named, str) else ""


def _name(entry: dict[str, Any], number: int) -> str:
    """Return the name of an entry's process group, or the number of the group if it has no name."""
    named = entry.get("process_group")
    if isinstance(named, list | tuple) and named and isinstance(named[0], str):
        return named[0]
    return str(number)


def _whole(value: Any, least: int = 0) -> int | None:
    """Convert a number or its digits to an integer.

    Return ``None`` for other values and for numbers less than `least`.
    """
    is_integral = isinstance(value, float) and value.is_integer()
    if is_integral or (isinstance(value, str) and _DIGITS.fullmatch(value)):
        value = int(value)
    return value if type(value) is int and least <= value < 10**18 else None


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _items(value: Any) -> list[tuple[str, Any]]:
    return [(str(key), each) for key, each in value.items()] if isinstance(value, dict) else []
