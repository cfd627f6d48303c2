"""Which parts of a long log are read, and what is only counted: cell by cell, from the bytes alone.

Reading a line costs thousands of times what looking for patterns in it costs. So the lines that can teach
something are read, as those of a short log are: rules' matches and what stands around them, tracebacks,
summaries, changes of course, a line of each wording that says that something is wrong, and an even share of
the metrics. How often a rule fired stays exact: frequent matches are counted without being read.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from stallwatch_rules.lines.leads import Lead
from stallwatch_rules.lines.wrapped import TAIL
from stallwatch_rules.matching.blockscan import BlockScanner
from stallwatch_rules.matching.cells import Cell
from stallwatch_rules.matching.rawview import view_of
from stallwatch_rules.matching.segments import LineEnds, Segments
from stallwatch_rules.matching.signscan import Found, SignScanner
from stallwatch_rules.sieve.blocks import block_at
from stallwatch_rules.sieve.bulk import Bulk, RawRules
from stallwatch_rules.sieve.metrics import KINDS, Picked, pick, pick_last
from stallwatch_rules.sieve.nearby import Nearby
from stallwatch_rules.sieve.state import SieveSizes, SieveState, wording
from stallwatch_rules.sieve.watched import SERIES, TRACEBACK, WATCHES

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Units = NDArray[np.int64]

_NONE: frozenset[str] = frozenset()
_BAR, _DICT = KINDS.index("bar"), KINDS.index("dict")
_SIGNED = (b"'loss': ", b'"loss": ')  # of a metric line that may name no step


class Left(NamedTuple):
    """What was left out between two pieces."""

    segments: int
    ends: int  #: line feeds among them
    kinds: frozenset[str] = frozenset()  #: of series that may be among them
    losses: int = 0  #: lines with a loss and without a step among them


class Piece(NamedTuple):
    """Segments that follow one another and are to be read."""

    data: bytes
    head: bytes = b""  #: of the record in which it stands, where that is left out
    more: tuple[tuple[str, int], ...] = ()  #: rule → lines like this one that were left out, but counted


class SieveEngine(NamedTuple):
    """The compiled patterns, which any number of sieves share."""

    rules: RawRules
    signs: SignScanner  #: the rules' patterns, then those of ``WATCHES``
    warning: BlockScanner
    metrics: BlockScanner


class Sieve:
    """Looks through the cells of one source in their order. Starts anew at each stretch.

    ``lead`` is what stands before the source's lines (``lines.leads``).
    """

    def __init__(self, engine: SieveEngine, sizes: SieveSizes, lead: Lead | None = None) -> None:
        self._engine = engine
        self._lead = lead
        self._sizes = sizes
        self._state = SieveState()
        self._stretch = -1

    def look_through(self, cell: Cell) -> Looked | None:
        """A cell's lines and what is found in it; nothing of an empty one.

        This runs through all of its bytes, after which a processor's caches hold nothing of Python's own: who
        looks through several cells and then sifts them is sooner done.
        """
        data, ends = cell.data, LineEnds(cell.data)
        if not ends.solid and b"\0" in data:
            data = data.replace(b"\0", b"")
            ends = LineEnds(data)
        if not data:
            return None
        view = view_of(data, solid=ends.solid)
        segments = Segments(data, view, ends)
        everything = self._sizes.is_dense(cell.place)
        found = self._engine.signs.find(view, segments, everything=everything)
        return Looked(cell.place, cell.torn, segments, view, found)

    def sift(self, looked: Looked) -> list[Left | Piece]:
        """What to read of a cell, in its order, and what is left out."""
        stretch = looked.place // self._sizes.stretch_cells
        if stretch != self._stretch:
            self._stretch, self._state = stretch, SieveState()
        return _Sifting(self._engine, self._sizes, self._state, looked, self._lead).run()


class Looked(NamedTuple):
    """A cell that was looked through."""

    place: int  #: which cell of the source
    torn: bool  #: it begins inside of a line that is longer than a line may be
    segments: Segments
    view: bytes
    found: Found


class _Sifting:
    """One cell."""

    def __init__(
        self,
        engine: SieveEngine,
        sizes: SieveSizes,
        state: SieveState,
        looked: Looked,
        lead: Lead | None,
    ) -> None:
        import numpy as np

        self._lead = lead
        self._engine = engine
        self._sizes = sizes
        self._state = state
        self._looked = looked
        self._segments = segments = looked.segments
        self._view = looked.view
        self._mask = np.zeros(segments.count, dtype=bool)
        self._told = np.zeros(segments.count, dtype=bool)  # of tracebacks whose other lines are read
        self._more: dict[int, list[tuple[str, int]]] = {}
        self._bulk: list[tuple[str, list[list[int]]]] = []  # a rule's segments that need not be read
        self._nearby = Nearby(segments, looked.view, engine.metrics, state, sizes)
        self._behind = segments.count  # how far this cell's windows reach

    def run(self) -> list[Left | Piece]:
        found, torn = self._looked.found, self._looked.torn
        number = self._looked.place % self._sizes.stretch_cells
        dense = self._sizes.is_dense(self._looked.place)
        self._mask[: max(self._state.carry, self._sizes.row if dense else 0)] = True
        self._behind = max(self._segments.count, self._state.carry)
        by_target = self._hits(found)
        watches = len(self._engine.rules.targets)
        self._tracebacks(by_target.pop(watches + WATCHES.index(TRACEBACK), ()))
        counted = [self._rule(target, units) for target, units in by_target.items() if target < watches]
        for target, units in by_target.items():
            if target >= watches:
                self._watch(target, units)
        self._severity(self._complaints(found.worded, number), counted)
        picked = self._metrics(number, dense)
        self._count()
        if torn:
            self._mask[0] = False
        self._state.carry = self._behind - self._segments.count
        parts = self._parts(picked)
        return self._with_rest(parts) if torn else parts

    def _with_rest(self, parts: list[Left | Piece]) -> list[Left | Piece]:
        """The same, with the end of the over-long line in which the cell begins, if it ends in it."""
        rest, left = self._segments.raw(0, 1), parts[0]
        if not rest.endswith((b"\n", b"\r")) or not isinstance(left, Left):
            return parts
        ends = self._segments.line_ends(0, 1)
        after = (
            [left._replace(segments=left.segments - 1, ends=left.ends - ends)] if left.segments > 1 else []
        )
        return [Left(1, 0), Piece(rest[-TAIL:]), *after, *parts[1:]]

    def _read(self, unit: int, before: int = 0, after: int = 0) -> None:
        self._mask[max(0, unit - before) : unit + after + 1] = True
        self._behind = max(self._behind, unit + after + 1)

    def _read_near(self, unit: int, before: int, after: int) -> None:
        """Read a rule's line, and what stands around it and says something new."""
        self._mask[unit] = True
        if before or after:
            self._mask[list(self._nearby.telling(unit, before, after))] = True
            self._behind = max(self._behind, unit + after + 1)

    def _hits(self, found: Found) -> dict[int, Units]:
        """The segments in which each target was found."""
        import numpy as np

        if not len(found.units):
            return {}
        rules = self._engine.rules
        keys = np.asarray(rules.target_of)[found.patterns] * self._segments.count + found.units
        targets, units = np.divmod(np.unique(keys), self._segments.count)
        starts = np.flatnonzero(np.diff(targets, prepend=-1))
        return {
            int(targets[start]): units[start:end]
            for start, end in zip(starts, [*starts[1:], len(units)], strict=True)
        }

    def _tracebacks(self, heads: Sequence[int] | Units) -> None:
        behind = 0
        for head in heads:
            if head < behind:
                continue
            block = block_at(self._segments, int(head))
            behind = block.behind
            if not block.whole:  # somebody writes between its lines, or the cell ends in it
                after = self._state.room(-1, self._sizes.torn_tracebacks, 1) * 6 + 2
                after *= self._sizes.tracebacks_after
                self._read(int(head), TRACEBACK.before, block.behind - int(head) + after)
                continue
            key = wording(block.final)
            met = self._state.finals.get(key, 0)
            self._state.finals[key] = met + 1
            if met < self._sizes.tracebacks and len(self._state.finals) <= self._sizes.wordings:
                self._read(
                    int(head), TRACEBACK.before, block.behind - int(head) + self._sizes.tracebacks_after
                )
            else:
                self._told[int(head) : block.behind - 1] = True
                self._mask[list(block.naming)] = True

    def _rule(self, target: int, units: Units) -> Units:
        if self._engine.rules.targets[target].is_context:  # that it was met is all there is to know
            room = self._state.room(target, self._sizes.contexts, len(units))
            self._mask[units[:room]] = True
            return units
        room = self._state.room(target, self._sizes.rule_lines, len(units))
        met = self._state.fired[target] - len(units)
        for order, unit in enumerate(units[:room].tolist()):
            self._read_near(unit, *self._state.window(met + order, self._sizes))
        for unit, lead in self._nearby.ends(target, units):
            self._mask[self._nearby.steps(unit, lead, ahead=self._engine.rules.by_progress[target])] = True
        if room < len(units):
            bulk = Bulk(self._engine.rules, target, self._segments, self._view, self._lead)
            groups = bulk.groups(units[room:][~self._told[units[room:]]])
            self._bulk.append((self._engine.rules.targets[target].rule, groups))
        return units

    def _count(self) -> None:
        """Read the first and the last of what is counted in bulk, and count what nobody reads."""
        for _, groups in self._bulk:
            for group in groups:
                self._mask[group[0]] = self._mask[group[-1]] = True
        for rule, groups in self._bulk:
            for group in groups:
                unread = len(group) - int(self._mask[group].sum())
                if unread:
                    self._more.setdefault(group[-1], []).append((rule, unread))

    def _watch(self, target: int, units: Units) -> None:
        watch = WATCHES[target - len(self._engine.rules.targets)]
        fresh = units[~(self._mask | self._told)[units]]
        room = self._state.room(target, watch.budget, len(fresh))
        for unit in fresh[:room].tolist():
            self._read(unit, watch.before, watch.after)

    def _complaints(self, worded: Units, number: int) -> Units:
        """Segments that say that something is wrong; warnings count in some cells only."""
        import numpy as np

        units = [worded]
        if number < self._sizes.dense_cells or number % self._sizes.warnings_every == 0:
            ends = self._engine.warning.first(self._view, self._sizes.warnings)
            units.append(self._segments.at(ends))
        return np.unique(np.concatenate(units))

    def _severity(self, units: Sequence[int] | Units, counted: Sequence[Units]) -> None:
        """One line of each wording. Lines that a rule knows are no news."""
        import numpy as np

        if not len(units):
            return
        known = self._mask | self._told
        for rule_units in counted:
            known[rule_units] = True
        fresh = np.asarray(units)[~known[units]]
        wordings = self._state.wordings
        for unit, text in zip(fresh.tolist(), self._segments.texts(fresh), strict=True):
            key = wording(text)
            met = wordings.get(key, 0)
            if met:
                wordings[key] = met = met + 1
                if not met & (met - 1):  # the 2nd, 4th, 8th …: so it is known where the last ones stood
                    self._mask[unit] = True
                    self._more.setdefault(unit, []).append(("", met // 2 - 1))
            elif len(wordings) < self._sizes.wordings and not self._mask[unit]:
                wordings[key] = 1
                self._read(unit, *self._sizes.wording)

    def _metrics(self, number: int, dense: bool) -> Picked:
        sizes, met, scanner = self._sizes, self._state.kinds, self._engine.metrics
        picked = None if dense else pick_last(scanner, self._view, met, sizes.probe)
        if picked is None:
            picked = pick(scanner, self._view, number, met, sizes.samples, sizes.probe)
        offsets = [offset for _, offset in picked.first] + list(picked.last.values())
        if offsets:
            self._mask[self._segments.at(offsets)] = True
        return picked

    def _parts(self, picked: Picked) -> list[Left | Piece]:
        segments, ranges = self._segments, self._ranges()
        hidden, loss = self._hidden(picked), self._uncounted_loss(picked)
        parts: list[Left | Piece] = []
        at = 0
        for first, behind in ranges:
            if first > at:
                parts.append(self._left(at, first, hidden, loss))
            parts += self._pieces(first, behind)
            at = behind
        if at < segments.count:
            parts.append(self._left(at, segments.count, hidden, loss))
        return parts

    def _ranges(self) -> list[tuple[int, int]]:
        """What is read, from which segment to behind which."""
        import numpy as np

        read = np.zeros(len(self._mask) + 2, dtype=bool)
        read[1:-1] = self._mask
        edges = np.flatnonzero(read[1:] != read[:-1]).tolist()
        return list(zip(edges[::2], edges[1::2], strict=True))

    def _left(
        self,
        first: int,
        behind: int,
        hidden: Sequence[tuple[int, frozenset[str]]],
        loss: re.Pattern[bytes] | None,
    ) -> Left:
        segments = self._segments
        kinds = next((kinds for start, kinds in hidden if behind > start), _NONE)
        losses = 0
        if loss is not None:
            end = segments.start(behind) if behind < segments.count else len(self._view)
            losses = len(loss.findall(self._view, segments.start(first), end))
        return Left(behind - first, segments.line_ends(first, behind), kinds, losses)

    def _pieces(self, first: int, behind: int) -> list[Piece]:
        """A range of segments; a line that stands for others is a piece of its own."""
        segments = self._segments
        marks = sorted(unit for unit in self._more if first <= unit < behind) if self._more else []
        pieces = []
        for mark in marks:
            if mark > first:
                pieces.append(Piece(segments.raw(first, mark), segments.record_head(first)))
            more = tuple(self._more[mark])
            pieces.append(Piece(segments.raw(mark, mark + 1), segments.record_head(mark), more))
            first = mark + 1
        if first < behind:
            pieces.append(Piece(segments.raw(first, behind), segments.record_head(first)))
        return pieces

    def _hidden(self, picked: Picked) -> list[tuple[int, frozenset[str]]]:
        """Behind which segments metrics are left out, and of which series; the last of them first."""
        offsets = {
            KINDS[kind]: offset
            for kind in range(len(KINDS))
            if (offset := picked.frequent(kind, self._sizes.samples)) is not None
        }
        if not offsets:
            return []
        starts = self._segments.at(list(offsets.values())).tolist()
        found: list[tuple[int, frozenset[str]]] = []
        series: frozenset[str] = _NONE
        for start, kind in sorted(zip(starts, offsets, strict=True)):
            series |= frozenset(SERIES.get(kind, (kind,)))
            found.append((start, series))
        return found[::-1]

    def _uncounted_loss(self, picked: Picked) -> re.Pattern[bytes] | None:
        """What stands once in each line with a loss and without a step, where such lines are left out.

        Beside a progress bar they have its step, so that nobody asks how many they are.
        """
        if picked.frequent(_DICT, self._sizes.samples) is None or _DICT not in picked.last:
            return None
        if _BAR in picked.last:
            return None
        unit = int(self._segments.at([picked.last[_DICT]])[0])
        text = self._segments.text(unit)
        if b"step" in text:
            return None
        # Python's expressions look for a text a third faster than bytes.count does.
        return next((re.compile(sign) for sign in _SIGNED if sign in text), None)
