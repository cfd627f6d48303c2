"""Convert ranks to and from text such as ``0-7,16``.

Stallwatch stores and sends ranks in this form.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from stallwatch_rules.stacks.records import RankGroup
from stallwatch_rules.text.digest import neighbours
from stallwatch_rules.text.lazy import lazy

MOST_RANKS = 1 << 17  #: maximum number of ranks in a job
_MOST_MEMBERS = 1 << 21  # maximum number of members in all groups together
_SPANS = lazy(r"[0-9]{1,9}(?:-[0-9]{1,9})?(?:,[0-9]{1,9}(?:-[0-9]{1,9})?)*")
_SPAN = lazy(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")


def spans_of(ranks: Iterable[int]) -> str:
    """Return ranks as text. For example, ``[0, 1, 2, 16]`` becomes ``0-2,16``."""
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in neighbours(ranks))


def ranks_in(spans: str) -> tuple[int, ...]:
    """Return the ranks that text such as ``0-2,16`` lists.

    The result is empty if the text is malformed or contains more than ``MOST_RANKS`` ranks.
    """
    found: list[int] = []
    for first, last in _SPAN.findall(spans) if _SPANS.fullmatch(spans) else ():
        begin, end = int(first), int(last or first)
        if not begin <= end < MOST_RANKS or len(found) + end - begin >= MOST_RANKS:
            return ()
        found += range(begin, end + 1)
    return tuple(found)


def host_of(rank: int, hosts: Mapping[str, str]) -> str:
    """Return the host of a rank, or an empty string if the host is unknown.

    `hosts` maps each host to its ranks as text.
    """
    return next((host for host, ranks in hosts.items() if rank in ranks_in(ranks)), "")


def members_of(layout: Iterable[RankGroup]) -> dict[str, tuple[int, ...]]:
    """Return a mapping from the IDs of process groups to the ranks of the groups.

    If the groups have too many members in total, only the first groups are returned.
    """
    found: dict[str, tuple[int, ...]] = {}
    left = _MOST_MEMBERS
    for group in layout:
        ranks = ranks_in(group.ranks)
        left -= len(ranks)
        if left < 0:
            break
        found[group.id] = ranks
    return found
