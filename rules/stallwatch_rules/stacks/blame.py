"""Which ranks hold up the others, by what each of them does. The surest evidence comes first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from stallwatch_rules.stacks.doing import Doing
from stallwatch_rules.stacks.flight import blamed, mismatched
from stallwatch_rules.stacks.records import Asked, Condition, Why


def odd_ones(ranks: Sequence[Asked], doing: Mapping[int, Doing]) -> tuple[list[int], Why]:
    """The ranks that hold up the others, and how that is known; none where all ranks do alike."""
    for condition, why in _CONDITIONS:
        found = [rank.rank for rank in ranks if rank.condition == condition]
        if found and len(found) < len(ranks):
            return sorted(found), why
    waiting = [rank.rank for rank in ranks if doing[rank.rank].waits]
    others = sorted(rank.rank for rank in ranks if not doing[rank.rank].waits)
    behind = blamed(ranks)
    if waiting and others:
        # Of several that do something else, those that the recorder misses.
        return ([rank for rank in others if rank in behind] or others), "elsewhere"
    if waiting and (different := mismatched(ranks)):
        return different, "diverged"
    if behind and len(behind) < len(ranks):
        return behind, "behind"
    if waiting:
        odd = _other_places(waiting, doing)
        return odd, "diverged" if odd else ""
    return _other_places([rank.rank for rank in ranks], doing), "elsewhere"


_CONDITIONS: tuple[tuple[Condition, Why], ...] = (("ended", "ended"), ("stopped", "stopped"))


def _other_places(ranks: Sequence[int], doing: Mapping[int, Doing]) -> list[int]:
    """Those that do something else than most others; all of two ranks that differ, when they wait."""
    where = {rank: (doing[rank].kind, doing[rank].what, doing[rank].place) for rank in ranks}
    counts = Counter(where.values()).most_common()
    if len(counts) < 2:
        return []
    if counts[0][1] > counts[1][1]:
        return sorted(rank for rank in ranks if where[rank] != counts[0][0])
    return sorted(ranks) if all(doing[rank].waits for rank in ranks) else []
