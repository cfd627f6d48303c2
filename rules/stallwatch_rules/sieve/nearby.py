"""What is read near a rule's match: neighbours that say something new, and the metrics that tell its step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from stallwatch_rules.matching.blockscan import BlockScanner
from stallwatch_rules.matching.segments import Segments
from stallwatch_rules.sieve.metrics import COUNTING, kinds_at
from stallwatch_rules.sieve.state import SieveSizes, SieveState, wording
from stallwatch_rules.text.lazy import lazy

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Units = NDArray[np.int64]

# What launchers put before the lines of a rank (``lines.prefixes`` knows more of them, which few logs have).
# The last of several counts.
_LEAD = lazy(rb"(?:\[?(?:[Rr]ank|default|trainer|worker)[ _-]?(\d{1,6})\]?: ?)+")
_NEAREST = 4  #: the share of the probe that is looked through first
_INDENTED = 5  #: times as many indented neighbours of one wording
_FARTHEST = 8  #: times the probe, where no metric stands in it


class Nearby:
    """Looks around in one cell: by the bytes beside a match, as asking for the places of lines costs more."""

    def __init__(
        self, segments: Segments, view: bytes, metrics: BlockScanner, state: SieveState, sizes: SieveSizes
    ) -> None:
        self._segments = segments
        self._view = view
        self._metrics = metrics
        self._state = state
        self._sizes = sizes
        self._redrawn = b"\r" in view

    def telling(self, unit: int, before: int, after: int) -> Iterator[int]:
        """Those of a segment's neighbours that are worth reading: each wording a few times in a stretch, and
        more often where it is indented, as it may go on with what somebody said."""
        view, start = self._view, self._segments.start(unit)
        met, most = self._state.neighbours, self._sizes.neighbours
        end = start
        for number in range(unit - 1, max(-1, unit - 1 - before), -1):
            begin = self._line_start(end - 1)
            if self._is_new(view[begin : end - 1], met, most):
                yield number
            end = begin
        begin = self._line_end(start) + 1
        for number in range(unit + 1, min(unit + 1 + after, self._segments.count)):
            end = self._line_end(begin)
            if self._is_new(view[begin:end], met, most):
                yield number
            begin = end + 1

    def _is_new(self, text: bytes, met: dict[bytes, int], most: int) -> bool:
        key = wording(text)
        count = met.get(key, 0)
        if count >= (_INDENTED * most if text[:1] in (b" ", b"\t") else most):
            return False
        if count or len(met) < self._sizes.wordings:
            met[key] = count + 1
        return True

    def ends(self, target: int, units: Units) -> list[tuple[int, bytes]]:
        """The first and the last of a rule's segments, of each rank that lines name at their start, with the
        rank. Of a rank whose first in this stretch was told before, only the last."""
        numbers = units.tolist()
        if len(numbers) > 2 * self._sizes.ends:
            numbers = numbers[: self._sizes.ends] + numbers[-self._sizes.ends :]
        leads: dict[bytes, tuple[int, int]] = {}
        for unit in numbers:
            lead = self._lead(self._segments.start(unit))
            leads[lead] = leads.get(lead, (unit, unit))[0], unit
        ends = []
        for lead, (first, last) in leads.items():
            ends.append((last, lead))
            if (target, lead) not in self._state.leads:
                if len(self._state.leads) < self._sizes.leads:
                    self._state.leads.add((target, lead))
                if first < last:
                    ends.append((first, lead))
        return ends

    def steps(self, unit: int, lead: bytes, *, ahead: bool) -> list[int]:
        """The last metrics before a segment, of its rank: they tell its step. ``ahead``: some behind, too."""
        start = self._segments.start(unit)
        before, behind = self._before(start, lead), self._behind(start, lead) if ahead else ()
        return [
            *(unit - self._between(offset - 1, start) for offset in before),
            *(unit + self._between(start, offset - 1) for offset in behind),
        ]

    def _before(self, start: int, lead: bytes) -> list[int]:
        """Where the last metric of each kind that counts steps ends."""
        wanted = self._state.kinds & COUNTING
        last: dict[int, int] = {}
        behind = start
        for size in self._ranges():
            begin = self._view.rfind(b"\n", 0, max(0, start - size)) + 1
            found = dict(self._found(begin, behind, lead))
            last = found | last
            if not begin or (size >= self._sizes.probe and last) or (wanted and wanted <= last.keys()):
                break
            behind = begin
        return [offset for kind, offset in last.items() if kind in COUNTING]

    def _behind(self, start: int, lead: bytes) -> list[int]:
        """Where the first metrics end."""
        most, begin = self._sizes.next_metrics, start
        offsets: list[int] = []
        for size in self._ranges():
            behind = self._view.find(b"\n", start + size) + 1 or len(self._view)
            found = self._found(begin, behind, lead, None if lead else most - len(offsets))
            offsets += [offset for _, offset in found]
            if len(offsets) >= most or size >= self._sizes.probe:
                break
            begin = behind
        return offsets[:most]

    def _ranges(self) -> tuple[int, int, int]:
        probe = self._sizes.probe
        return probe // _NEAREST, probe, _FARTHEST * probe

    def _found(
        self, begin: int, behind: int, lead: bytes, most: int | None = None
    ) -> Iterator[tuple[int, int]]:
        """The kinds and places of the metrics between two offsets."""
        found = kinds_at(self._metrics, self._view, begin, behind, most)
        if not lead:
            return found
        return ((kind, at) for kind, at in found if self._lead(self._line_start(at)) == lead)

    def _lead(self, at: int) -> bytes:
        """The rank that a line names at its start; empty for none."""
        found = _LEAD.match(self._view, at)
        return found[1] if found else b""

    def _between(self, begin: int, end: int) -> int:
        """How many segments end between two offsets."""
        ends = self._view.count(b"\n", begin, end)
        return ends + self._view.count(b"\r", begin, end) if self._redrawn else ends

    def _line_start(self, at: int) -> int:
        """Where the segment begins to which this offset belongs, or which ends there."""
        start = self._view.rfind(b"\n", 0, at)
        return (max(start, self._view.rfind(b"\r", start + 1, at)) if self._redrawn else start) + 1

    def _line_end(self, at: int) -> int:
        end = self._view.find(b"\n", at)
        end = end if end >= 0 else len(self._view)
        returned = self._view.find(b"\r", at, end) if self._redrawn else -1
        return returned if returned >= 0 else end
