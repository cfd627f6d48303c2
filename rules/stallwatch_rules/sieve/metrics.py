"""A bounded share of a cell's metric lines: the first few and the last of each kind.

So the steps, their pace and where they ended are known, though most of the lines are left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from stallwatch_rules.matching.blockscan import BlockScanner
from stallwatch_rules.sieve.watched import METRICS, SERIES

KINDS = tuple(kind for kind, _ in METRICS)
PATTERNS = tuple(pattern for _, patterns in METRICS for pattern in patterns)
_KIND_OF = tuple(kind for kind, (_, patterns) in enumerate(METRICS) for _ in patterns)
#: The kinds by which steps are counted.
COUNTING = frozenset(number for number, kind in enumerate(KINDS) if SERIES.get(kind, (kind,)))
_WHOLE_EVERY = 8  #: so often a cell is looked through for kinds that were not met yet
_MOST_BETWEEN = 300  #: metrics between a cell's two ends after which it is not looked through further


@dataclass
class Picked:
    """Offsets in the view at which metrics were found."""

    first: list[tuple[int, int]] = field(default_factory=list)  #: (kind, offset), up to a few of each
    last: dict[int, int] = field(default_factory=dict)
    counts: list[int] = field(default_factory=lambda: [0] * len(KINDS))

    def frequent(self, kind: int, share: int) -> int | None:
        """Behind which offset lines of this kind were left out, if any were."""
        if self.counts[kind] <= (share if self.first else 0):
            return None
        return max((offset for one, offset in self.first if one == kind), default=0)


def pick_last(scanner: BlockScanner, view: bytes, met: set[int], probe: int) -> Picked | None:
    """Only the last metric of each kind, where all kinds of this stretch stand near the cell's end."""
    if len(view) <= 3 * probe:
        return None
    for size in (probe // 4, probe):
        back = view.rfind(b"\n", 0, len(view) - size) + 1
        picked = Picked()
        _look(scanner, view, back, len(view), 0, picked)
        if met <= picked.last.keys():
            picked.counts = [1 if kind in met else 0 for kind in range(len(KINDS))]
            return picked
    return None


def kinds_at(
    scanner: BlockScanner, view: bytes, start: int, end: int, most: int | None = None
) -> Iterator[tuple[int, int]]:
    """The kinds of the metrics between two offsets, and where each was found; the first ``most``."""
    hits = scanner.hits(memoryview(view)[start:end], most)
    return ((_KIND_OF[pattern], start + offset) for pattern, offset in zip(*hits, strict=True))


def pick(scanner: BlockScanner, view: bytes, index: int, met: set[int], share: int, probe: int) -> Picked:
    """The metrics to read of a cell; ``met`` are the kinds of this stretch so far, and is added to."""
    picked = Picked()
    size = len(view)
    if size <= 3 * probe:
        _look(scanner, view, 0, size, share, picked)
    else:
        front = view.find(b"\n", probe) + 1 or size
        back = max(front, view.rfind(b"\n", 0, size - probe) + 1)
        _look(scanner, view, 0, front, share, picked)
        ahead = list(picked.counts)
        behind = Picked()
        _look(scanner, view, back, size, share, behind)
        if index % _WHOLE_EVERY and all(ahead[kind] > share and behind.counts[kind] for kind in met):
            picked.counts = [n and max(n, share + 1) for n in ahead]
        else:
            _look(scanner, view, front, back, share, picked, _MOST_BETWEEN)
        for kind, offset in behind.first:
            if picked.counts[kind] < share:
                picked.first.append((kind, offset))
        picked.counts = [n + m for n, m in zip(picked.counts, behind.counts, strict=True)]
        picked.last.update(behind.last)
    met.update(kind for kind, count in enumerate(picked.counts) if count)
    return picked


def _look(
    scanner: BlockScanner,
    view: bytes,
    start: int,
    end: int,
    share: int,
    picked: Picked,
    most: int | None = None,
) -> None:
    """Count what stands between two offsets; after ``most`` metrics nothing more is looked for."""
    counts, first, last = picked.counts, picked.first, picked.last
    for kind, offset in kinds_at(scanner, view, start, end, most):
        counts[kind] += 1
        if counts[kind] <= share:
            first.append((kind, offset))
        last[kind] = offset
