"""Read NCCL watchdog reports about the collectives of each rank and find the missing rank.

The ranks that print a timeout are the ranks that waited. Their counters identify the missing rank: its last
enqueued collective is earlier than the last enqueued collectives of all other ranks. If the counters do not
differ, the missing rank is the rank that printed no report.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import msgspec

from stallwatch_rules.messages import Text, message
from stallwatch_rules.stacks.blame import blame
from stallwatch_rules.stacks.records import Collectives, RankGroup, StackGroup
from stallwatch_rules.stacks.spans import spans_of
from stallwatch_rules.text.digest import fold_ranks
from stallwatch_rules.text.lazy import lazy

if TYPE_CHECKING:
    from stallwatch_rules.stream import Key, StreamReading

START_UP = 5  #: maximum sequence number of a collective that runs while a communicator starts
MAX_RANKS = 4096
MAX_SHOWN = 4  #: maximum number of different collectives in a sentence
#: Operations between two ranks. Both ranks use the same sequence number for a transfer (torch,
#: ProcessGroupNCCL.cpp).
_OF_A_PAIR = frozenset(("SEND", "RECV", "COALESCED"))

_RANK = lazy(r"\bRank (\d{1,6})\]")
_GROUP = lazy(r"\bPG (?:ID|GUID) (\d{1,6})\b")
_GUID = lazy(r"\bPG GUID (\w{1,64})")
_SIZE = lazy(r"\bNumelIn=(\d{1,18})")
_WORK = lazy(r"\bSeqNum=(\d{1,12}), ?OpType=(\w{1,40})")
_COUNTERS = lazy(r"last enqueued (?:NCCL )?work: (-?\d{1,12}), last completed (?:NCCL )?work: -?\d{1,12}")


class WatchdogPosition(msgspec.Struct):
    """The position of one rank in its sequence of collectives, as the NCCL watchdog reports it."""

    work: int | None = None  #: sequence number of the collective that timed out
    operation: str = ""
    size: int | None = None  #: number of elements in the input of this rank
    #: Name of the process group. The name is the same on all ranks, whereas each rank numbers its own groups.
    group: str = ""
    enqueued: int | None = None


class FlightData:
    """A reader for the lines from the NCCL watchdog in one stream."""

    def __init__(self) -> None:
        self.ranks: dict[tuple[str, int], WatchdogPosition] = {}  #: positions keyed by process group and rank

    def see(self, text: str, rank: int | None) -> None:
        """Read a line that matches a rule for timeouts.

        `rank` is the rank that printed the line, if it is known.
        """
        named = _RANK.search(text)
        if named is not None:
            rank = int(named[1])
        work, counters = _WORK.search(text), _COUNTERS.search(text)
        if rank is None or (work is None and counters is None):
            return
        group = _GROUP.search(text)
        key = (group[1] if group else "", rank)
        if key not in self.ranks and len(self.ranks) >= MAX_RANKS:
            return
        flight = self.ranks.setdefault(key, WatchdogPosition())
        if work is not None and flight.work is None:
            size = _SIZE.search(text)
            flight.work, flight.operation = int(work[1]), work[2]
            flight.size = int(size[1]) if size else None
            guid = _GUID.search(text)
            flight.group = guid[1] if guid else ""
        if counters is not None and flight.enqueued is None:
            flight.enqueued = int(counters[1])


def watchdog_positions(streams: Mapping[Key, StreamReading]) -> dict[tuple[str, int], WatchdogPosition]:
    """Combine the watchdog positions from all streams, keyed by process group and rank."""
    return {key: flight for stream in streams.values() for key, flight in stream.flight.ranks.items()}


def reporting(flights: Mapping[tuple[str, int], WatchdogPosition]) -> set[int]:
    """Return the ranks whose watchdogs reported a timeout."""
    return {rank for _, rank in flights}


def first_timed_out_collective(flights: Mapping[tuple[str, int], WatchdogPosition]) -> int | None:
    """Return the lowest sequence number of a collective that timed out."""
    return min((flight.work for flight in flights.values() if flight.work is not None), default=None)


def wait_in_unequal_gathers(flights: Mapping[tuple[str, int], WatchdogPosition]) -> bool:
    """Return whether ranks wait in the same all-gather with inputs of different sizes."""
    sizes: dict[tuple[str, int | None], set[int]] = {}
    for (group, _), flight in flights.items():
        if "ALLGATHER" in flight.operation.upper() and flight.size is not None:
            sizes.setdefault((group, flight.work), set()).add(flight.size)
    return any(len(found) > 1 for found in sizes.values())


class MismatchedRanks(msgspec.Struct, frozen=True):
    """Ranks that waited in a different collective than most ranks of their process group.

    If no collective has a majority, ``ranks`` contains all ranks of the process group.
    """

    ranks: list[int]
    #: Ranks that waited in each collective, keyed by the collective's number and operation.
    works: Mapping[tuple[int, str], list[int]]

    def own(self) -> str:
        """Return the collectives in which the differing ranks waited, such as ``rank 2: ALLREDUCE #5550``."""
        return self._shown(lambda rank: rank in self.ranks)

    def others(self) -> str:
        """Return the collectives of the remaining ranks, such as ``ranks 0, 1, 3: REDUCE_SCATTER #5551``."""
        return self._shown(lambda rank: rank not in self.ranks)

    def all(self) -> str:
        """Return the collectives of the differing ranks, followed by those of the remaining ranks."""
        return "; ".join(filter(None, (self.own(), self.others())))

    def _shown(self, of: Callable[[int], bool]) -> str:
        parts = [
            f"{_ranks(ranks)}: {operation} #{work}"
            for (work, operation), every in sorted(self.works.items())
            if (ranks := [rank for rank in every if of(rank)])
        ]
        return ", ".join(parts[:MAX_SHOWN])


def mismatched_ranks(flights: Mapping[tuple[str, int], WatchdogPosition]) -> MismatchedRanks | None:
    """Return the ranks that waited in a different operation than most ranks of their process group.

    Return ``None`` if all ranks waited in the same operation. In this case, a lower sequence number shows
    only that a rank is late.
    """
    for ranks in _by_group(flights):
        works: dict[tuple[int, str], list[int]] = {}
        for rank, flight in ranks.items():
            if flight.work is not None:
                works.setdefault((flight.work, flight.operation), []).append(rank)
        if len({operation for _, operation in works}) < 2:
            continue
        group = RankGroup("", spans_of(rank for ranks in works.values() for rank in ranks))
        found = blame([_waiting(*work, ranks) for work, ranks in works.items()], [group])
        return MismatchedRanks(sorted(found.ranks or found.candidates), works)
    return None


def _waiting(work: int, operation: str, ranks: list[int]) -> StackGroup:
    """Return the ranks that waited in a collective, in the form of a group of ranks with equal stacks."""
    return StackGroup(sorted(ranks), "collective", collectives={"": Collectives(work, work - 1, operation)})


def mismatched(flights: Mapping[tuple[str, int], WatchdogPosition]) -> MismatchedRanks | None:
    """Return the ranks whose operation differs from that of other ranks at the same sequence number.

    Each process group counts its own calls. Groups that have no name are skipped, because several of them can
    use the same sequence number.
    """
    together = {
        (flight.group, rank): flight
        for (_, rank), flight in flights.items()
        if flight.group and flight.operation not in _OF_A_PAIR
    }
    odd = mismatched_ranks(together)
    numbers = [number for number, _ in odd.works] if odd is not None else []
    return odd if len(set(numbers)) < len(numbers) else None


def _by_group(flights: Mapping[tuple[str, int], WatchdogPosition]) -> list[dict[int, WatchdogPosition]]:
    """Return the positions of the ranks in each process group. The largest group comes first.

    Positions in different groups cannot be compared, because each group numbers its own collectives.
    """
    groups: dict[str, dict[int, WatchdogPosition]] = {}
    for (group, rank), flight in flights.items():
        groups.setdefault(group, {})[rank] = flight
    return [groups[group] for group in sorted(groups, key=lambda name: (-len(groups[name]), name))]


def flight_note(flights: Mapping[tuple[str, int], WatchdogPosition]) -> Text:
    """Return a sentence about the rank that is missing according to the watchdog's counters.

    The sentence is empty if the counters do not identify such a rank.
    """
    return next((note for ranks in _by_group(flights) if (note := _note(ranks))), "")


def _note(ranks: Mapping[int, WatchdogPosition]) -> Text:
    enqueued = {rank: f.enqueued for rank, f in ranks.items() if f.enqueued is not None}
    counts = sorted(set(enqueued.values()))
    if len(enqueued) >= 3 and len(counts) == 2:
        behind = [rank for rank, count in enqueued.items() if count == counts[0]]
        if len(behind) == 1 or 4 * len(behind) <= len(enqueued):
            low, high = counts
            return message("diagnosis.flight-behind", ranks=_ranks(behind), behind=low, others=high)
    operations = {(f.work, f.operation) for f in ranks.values() if f.work is not None}
    names = {operation for _, operation in operations}
    if len(ranks) >= 2 and len(names) > 1:
        odd = mismatched_ranks({("", rank): flight for rank, flight in ranks.items()})
        shown = odd.all() if odd is not None else ""
        return message("diagnosis.flight-differs", shown=shown)
    sizes = sorted({flight.size for flight in ranks.values() if flight.size is not None})
    if len(operations) == 1 and len(sizes) > 1:
        shown = ", ".join(str(size) for size in sizes[:4])
        return message("diagnosis.flight-sizes", operation=operations.pop()[1], shown=shown)
    if len({work for work, _ in operations}) != 1:
        return ""
    work, operation = next(iter(operations))
    if work <= START_UP:
        return message("diagnosis.flight-first", work=work, operation=operation)
    if len(counts) <= 1 and len(ranks) >= 2:
        return message("diagnosis.flight-same", work=work, operation=operation, ranks=_ranks(list(ranks)))
    return ""


def _ranks(ranks: list[int]) -> str:
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {fold_ranks(ranks)}"
