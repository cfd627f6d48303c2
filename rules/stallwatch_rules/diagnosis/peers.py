"""What ranks print when another one is gone: never why that one went.

Who loses a connection says so at once; the launcher tells of the process that ended only when it has ended
all the others. So neither the order of these lines nor their times tell which of them came first.
"""

from __future__ import annotations

from collections.abc import Collection

from stallwatch_rules.diagnosis.findings import Found, Streams

_BY_SIGTERM = (-15, 143)


def ended_first(streams: Streams) -> tuple[int, int] | None:
    """The rank that the launchers saw fail first, and its exit code; ``None`` where they do not agree."""
    first: set[tuple[int, int]] = set()
    for stream in streams.values():
        summary, culprits = stream.summary, stream.summary.culprits
        rank = summary.first if summary.first is not None else culprits[0] if len(culprits) == 1 else None
        code = summary.codes.get(rank) if rank is not None else None
        if rank is not None and code not in (None, 0, *_BY_SIGTERM):
            first.add((rank, code))
    return first.pop() if len(first) == 1 else None


def ended_well(streams: Streams) -> int | None:
    """The one rank that made steps and that torchrun's list of failures does not name beside all others.

    The list names each process of its node with another status than 0, those that torchrun ended itself too
    (`SubprocessContext._poll`, torch 2.13). Of several that it leaves out, another node's list may tell.
    """
    codes = {rank for stream in streams.values() for rank in stream.summary.codes}
    summed = any(stream.summary.first is not None for stream in streams.values())
    stepped = {rank for (_, rank), stream in streams.items() if rank is not None and stream.last_advance}
    left = stepped - codes
    if not summed or len(codes) < 2 or len(left) != 1 or codes | left != set(range(len(codes) + 1)):
        return None
    return left.pop()


def ended_with(codes: Collection[int], streams: Streams) -> set[int]:
    """The ranks that launchers saw end with one of these exit codes."""
    summaries = (stream.summary for stream in streams.values())
    return {rank for summary in summaries for rank, code in summary.codes.items() if code in codes}


def lost_peers(found: list[Found], own: Collection[int | None]) -> list[Found]:
    """The findings that ranks lost a peer, where none of the ranks `own` says so."""
    gone = [one for one in found if one.tagged("peer-gone") and one.harm == "fatal" and one.role == "symptom"]
    return [one for one in gone if one.hits and not {rank for _, rank in one.hits} & set(own)]


def wreckage(found: list[Found], own: Collection[int | None]) -> set[str]:
    """The rules of what peers of the ranks `own` printed when they lost them, and of what comes of that."""
    lost = lost_peers(found, own)
    return {rule for one in lost for rule in (one.rule, *one.page.explains)}
