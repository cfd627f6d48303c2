"""Select the metric lines to read: the first and last lines of each kind, and lines near matches.

The selected lines are sufficient to determine the steps, their durations, and the last step, although most
metric lines are skipped.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from stallwatch_rules.matching.database import BlockScanner
from stallwatch_rules.scan.patterns import COUNTING, KIND_OF, KINDS
from stallwatch_rules.scan.segments import Segments
from stallwatch_rules.scan.state import ScanSizes, ScanState, template_of
from stallwatch_rules.text.lazy import lazy

_WHOLE_EVERY = 8  # one in this many chunks is searched completely for more kinds of metrics
_MOST_BETWEEN = 300  # maximum number of metrics to find between the first and the last part of a chunk

# Launchers add prefixes with the rank of a line. (``lines.ranks`` also handles rare prefixes.) If a line has
# several prefixes, the last prefix is used.
_RANK_PREFIX = lazy(rb"(?:\[?(?:[Rr]ank|default|trainer|worker)[ _-]?(\d{1,6})\]?: ?)+")
_NEAREST = 4  # the first search covers the probe size divided by this number
_FARTHEST = 8  # the last search covers the probe size multiplied by this number
_INDENTED = 5  # for indented lines, the limit for each template is multiplied by this factor


@dataclass
class MetricOffsets:
    """The offsets of the metrics that were found in a chunk."""

    #: Kind and offset of the first metrics. The number of entries is limited for each kind.
    first: list[tuple[int, int]] = field(default_factory=list)
    last: dict[int, int] = field(default_factory=dict)
    counts: list[int] = field(default_factory=lambda: [0] * len(KINDS))

    def frequent(self, kind: int, share: int) -> int | None:
        """Return the offset after which lines of this kind are skipped, or ``None`` if all lines are read."""
        if self.counts[kind] <= (share if self.first else 0):
            return None
        return max((offset for other, offset in self.first if other == kind), default=0)

    def look(
        self,
        scanner: BlockScanner,
        view: bytes,
        start: int,
        end: int,
        share: int = 0,
        most: int | None = None,
    ) -> None:
        """Find and count the metrics between two offsets. The search ends after `most` metrics."""
        for kind, offset in kinds_at(scanner, view, start, end, most):
            self.counts[kind] += 1
            if self.counts[kind] <= share:
                self.first.append((kind, offset))
            self.last[kind] = offset


def kinds_at(
    scanner: BlockScanner, view: bytes, start: int, end: int, most: int | None = None
) -> Iterator[tuple[int, int]]:
    """Yield the kind and the offset of each of the first `most` metrics between two offsets."""
    hits = scanner.hits(memoryview(view)[start:end], most)
    return ((KIND_OF[pattern], start + offset) for pattern, offset in zip(*hits, strict=True))


def pick_last(scanner: BlockScanner, view: bytes, met: set[int], probe: int) -> MetricOffsets | None:
    """If all kinds in `met` occur near the end of the chunk, return the last metric of each kind.

    Otherwise, return ``None``. `met` contains the kinds of metrics that have been found in the section so
    far.
    """
    if len(view) <= 3 * probe:
        return None
    for size in (probe // 4, probe):
        picked = MetricOffsets()
        picked.look(scanner, view, view.rfind(b"\n", 0, len(view) - size) + 1, len(view))
        if met <= picked.last.keys():
            picked.counts = [1 if kind in met else 0 for kind in range(len(KINDS))]
            return picked
    return None


def pick(
    scanner: BlockScanner, view: bytes, index: int, met: set[int], share: int, probe: int
) -> MetricOffsets:
    """Return the metrics to read in a chunk, and add their kinds to `met`."""
    picked = MetricOffsets()
    size = len(view)
    if size <= 3 * probe:
        picked.look(scanner, view, 0, size, share)
    else:
        front = view.find(b"\n", probe) + 1 or size
        back = max(front, view.rfind(b"\n", 0, size - probe) + 1)
        picked.look(scanner, view, 0, front, share)
        ahead = list(picked.counts)
        behind = MetricOffsets()
        behind.look(scanner, view, back, size, share)
        if index % _WHOLE_EVERY and all(ahead[kind] > share and behind.counts[kind] for kind in met):
            picked.counts = [n and max(n, share + 1) for n in ahead]
        else:
            picked.look(scanner, view, front, back, share, _MOST_BETWEEN)
        picked.first += [found for found in behind.first if picked.counts[found[0]] < share]
        picked.counts = [n + m for n, m in zip(picked.counts, behind.counts, strict=True)]
        picked.last.update(behind.last)
    met.update(kind for kind, count in enumerate(picked.counts) if count)
    return picked


class MatchSurroundings:
    """A search around a match for informative lines and for metrics that show the step of the match."""

    def __init__(
        self, segments: Segments, view: bytes, metrics: BlockScanner, state: ScanState, sizes: ScanSizes
    ) -> None:
        self._segments = segments
        self._view = view
        self._metrics = metrics
        self._state = state
        self._sizes = sizes
        self._redrawn = b"\r" in view
        self._ranges = sizes.probe // _NEAREST, sizes.probe, _FARTHEST * sizes.probe

    def informative(self, unit: int, before: int, after: int) -> Iterator[int]:
        """Yield the segments to read around a match.

        In each section, only a few segments for each template of lines are yielded. The limit is higher for
        indented lines, because they can continue a message.
        """
        view, start = self._view, self._segments.start(unit)
        end = start
        for number in range(unit - 1, max(-1, unit - 1 - before), -1):
            begin = self._line_start(end - 1)
            if self._is_new(view[begin : end - 1]):
                yield number
            end = begin
        begin = self._line_end(start) + 1
        for number in range(unit + 1, min(unit + 1 + after, self._segments.count)):
            end = self._line_end(begin)
            if self._is_new(view[begin:end]):
                yield number
            begin = end + 1

    def _is_new(self, text: bytes) -> bool:
        met, most = self._state.neighbours, self._sizes.neighbours
        key = template_of(text)
        count = met.get(key, 0)
        if count >= (_INDENTED * most if text[:1] in (b" ", b"\t") else most):
            return False
        if count or len(met) < self._sizes.templates:
            met[key] = count + 1
        return True

    def ends(self, target: int, units: list[int]) -> list[tuple[int, bytes]]:
        """For each rank, return the first and last segments in which a rule matches, as (segment, rank).

        The rank is read at the start of the line. If an earlier call returned the first segment of
        the rank in this section, only the last segment is returned.
        """
        if len(units) > 2 * self._sizes.ends:
            units = units[: self._sizes.ends] + units[-self._sizes.ends :]
        ranks: dict[bytes, tuple[int, int]] = {}
        for unit in units:
            rank = self._rank(self._segments.start(unit))
            ranks[rank] = ranks.get(rank, (unit, unit))[0], unit
        ends = []
        for rank, (first, last) in ranks.items():
            ends.append((last, rank))
            if (target, rank) not in self._state.ranks:
                if len(self._state.ranks) < self._sizes.ranks:
                    self._state.ranks.add((target, rank))
                if first < last:
                    ends.append((first, rank))
        return ends

    def steps(self, unit: int, rank: bytes, *, ahead: bool) -> list[int]:
        """Return the segments with the last metrics of a rank before a segment.

        These metrics show the step of the segment.

        If `ahead` is true, segments with the next metrics after the segment are included.
        """
        start = self._segments.start(unit)
        before, behind = self._before(start, rank), self._behind(start, rank) if ahead else ()
        return [
            *(unit - self._between(offset - 1, start) for offset in before),
            *(unit + self._between(start, offset - 1) for offset in behind),
        ]

    def _before(self, start: int, rank: bytes) -> list[int]:
        """Return the offsets of a rank's last metrics before `start`: one for each kind that shows steps."""
        wanted = self._state.kinds & COUNTING
        last: dict[int, int] = {}
        behind = start
        for size in self._ranges:
            begin = self._view.rfind(b"\n", 0, max(0, start - size)) + 1
            last = dict(self._found(begin, behind, rank)) | last
            if not begin or (size >= self._sizes.probe and last) or (wanted and wanted <= last.keys()):
                break
            behind = begin
        return [offset for kind, offset in last.items() if kind in COUNTING]

    def _behind(self, start: int, rank: bytes) -> list[int]:
        """Return the offsets of the first metrics of a rank after `start`."""
        most, begin = self._sizes.next_metrics, start
        offsets: list[int] = []
        for size in self._ranges:
            behind = self._view.find(b"\n", start + size) + 1 or len(self._view)
            found = self._found(begin, behind, rank, None if rank else most - len(offsets))
            offsets += [offset for _, offset in found]
            if len(offsets) >= most or size >= self._sizes.probe:
                break
            begin = behind
        return offsets[:most]

    def _found(
        self, begin: int, behind: int, rank: bytes, most: int | None = None
    ) -> Iterator[tuple[int, int]]:
        """Yield the kind and the offset of each metric of a rank between two offsets."""
        found = kinds_at(self._metrics, self._view, begin, behind, most)
        if not rank:
            return found
        return ((kind, at) for kind, at in found if self._rank(self._line_start(at)) == rank)

    def _rank(self, at: int) -> bytes:
        """Return the rank in the prefix of a line, or empty bytes if the line has no such prefix."""
        found = _RANK_PREFIX.match(self._view, at)
        return found[1] if found else b""

    def _between(self, begin: int, end: int) -> int:
        """Return the number of segments that end between two offsets."""
        ends = self._view.count(b"\n", begin, end)
        return ends + self._view.count(b"\r", begin, end) if self._redrawn else ends

    def _line_start(self, at: int) -> int:
        """Return the start of the segment that contains this offset or ends there."""
        start = self._view.rfind(b"\n", 0, at)
        return (max(start, self._view.rfind(b"\r", start + 1, at)) if self._redrawn else start) + 1

    def _line_end(self, at: int) -> int:
        end = self._view.find(b"\n", at)
        end = end if end >= 0 else len(self._view)
        returned = self._view.find(b"\r", at, end) if self._redrawn else -1
        return returned if returned >= 0 else end
