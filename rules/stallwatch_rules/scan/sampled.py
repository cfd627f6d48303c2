"""Select the parts of a long log to read, based on the bytes of each chunk. Other lines are only counted.

Reading a line takes thousands of times as long as searching it for patterns. Therefore, only informative
lines are read: matches of rules and the lines around them, tracebacks, summaries, changes of the run's
phase, one line of each template that reports a problem, and an evenly spread part of the metrics. These
lines are read in the same way as the lines of a short log. The number of matches of each rule is exact,
because frequent matches are counted without being read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from stallwatch_rules.end_lines import own_text
from stallwatch_rules.lines.line_prefix import LinePrefix
from stallwatch_rules.lines.long_lines import TAIL
from stallwatch_rules.lines.reader import MAX_LINE, LineReader
from stallwatch_rules.pages.patterns import compile_re2
from stallwatch_rules.scan.chunks import Chunk
from stallwatch_rules.scan.heads import AFTER, BEFORE, head_scanner, heads_in
from stallwatch_rules.scan.metrics import MatchSurroundings, MetricOffsets, pick, pick_last
from stallwatch_rules.scan.patterns import KINDS, METRICS, TRACEBACK, WATCHES, Hits, ScanEngine, Target
from stallwatch_rules.scan.segments import Segments
from stallwatch_rules.scan.state import ScanSizes, ScanState, template_of
from stallwatch_rules.text.lazy import lazy

_MOST_OF_TRACEBACKS = 400  # maximum number of segments in a chain of tracebacks
_TRACEBACK = lazy(rb"[Tt]raceback \(most recent call last\)")
_CHAIN = lazy(rb"During handling of the above exception|The above exception was the direct cause")
_MARKS = lazy(rb"\x01+")
_CHAIN_LINES = 4  # number of lines after a traceback to search for the next traceback of a chain
_LIBRARY = lazy(rb"site-packages|dist-packages|[/\\]lib[/\\]python3|<frozen|<string>")
# Lines that can contain their rank, and lines that Stallwatch might have written, must be parsed.
_MARKED = lazy(rb"[Rr]ank[ _\]\d]|\[default\d|\[trainer\d|\[worker\d|<std(?:out|err)>|stallwatch:")
# The usual prefixes of launchers. If a line has several prefixes, the last prefix is used.
_RANK_PREFIX = lazy(rb"(?:\[(?:rank|default)(\d{1,6})\]: ?)+")
_NONE: frozenset[str] = frozenset()
_BAR, _DICT = KINDS.index("bar"), KINDS.index("dict")
_SIGNED = (b"'loss': ", b'"loss": ')  # texts in metric lines that might not contain a step


class Skipped(NamedTuple):
    """A skipped part of a log, between two parts that are read."""

    segments: int
    ends: int  #: number of line feeds in the skipped part
    kinds: frozenset[str] = frozenset()  #: kinds of series whose samples were skipped
    losses: int = 0  #: number of skipped lines that contain a loss but no step


class Window(NamedTuple):
    """Consecutive segments that are read."""

    data: bytes
    head: bytes = b""  #: beginning of the container record, if the record begins before the window

    #: Pairs of a rule and the number of similar lines that were counted but not read.
    more: tuple[tuple[str, int], ...] = ()


class SearchedChunk(NamedTuple):
    """The result of a search for patterns in a chunk."""

    place: int  #: number of the chunk in the source
    counts_as: int  #: number that determines how thoroughly the chunk is searched
    torn: bool  #: True if the chunk begins inside a line that exceeds the maximum length
    segments: Segments
    hits: Hits
    heads: Sequence[int] = ()  #: segments that repeat the beginning of the source


class SampledScan:
    """A scan of the chunks of one source, in order. In each section, a limited number of lines is read.

    `lead` is the prefix of the source's lines (``lines.line_prefix``). `heads` are strings from the start of
    the source.
    """

    def __init__(
        self,
        engine: ScanEngine,
        sizes: ScanSizes,
        lead: LinePrefix | None = None,
        heads: tuple[str, ...] = (),
        source: str = "",
    ) -> None:
        self._engine = engine
        self._first = sizes.first_chunk(source)
        self._heads = head_scanner(heads)
        self._lead = lead
        self._sizes = sizes
        self._state = ScanState()
        self._section = -1

    def search(self, chunk: Chunk) -> SearchedChunk | None:
        """Search a chunk for patterns and return the result. Return ``None`` for an empty chunk.

        Searching a chunk displaces Python's data from the processor caches. Therefore, it is faster to search
        several chunks before segments are selected from these chunks.
        """
        segments = Segments(chunk.data)
        if not segments.data:
            return None
        counts_as = chunk.place or self._first
        everything = self._sizes.is_dense(counts_as)
        hits = self._engine.patterns.find(segments.view, segments, everything=everything)
        heads = heads_in(self._heads, segments) if self._heads is not None else ()
        return SearchedChunk(chunk.place, counts_as, chunk.torn, segments, hits, heads)

    def select(self, searched: SearchedChunk) -> list[Skipped | Window]:
        """Return the parts of a chunk in order: the parts to read, and the skipped parts between them."""
        section = searched.place // self._sizes.section
        if section != self._section:
            self._section, self._state = section, ScanState()
        return _Selection(self._engine, self._sizes, self._state, searched, self._lead).run()


class _Selection:
    """The selection of the segments to read in one chunk."""

    def __init__(
        self,
        engine: ScanEngine,
        sizes: ScanSizes,
        state: ScanState,
        searched: SearchedChunk,
        lead: LinePrefix | None,
    ) -> None:
        self._lead = lead
        self._engine = engine
        self._sizes = sizes
        self._state = state
        self._searched = searched
        self._segments = segments = searched.segments
        self._view = segments.view
        self._mask = bytearray(segments.count)  # one byte for each segment: 1 if the segment is read

        # Segments of the tracebacks of which only the identifying lines are read.
        self._named: set[int] = set()
        self._more: dict[int, list[tuple[str, int]]] = {}
        self._counted: list[tuple[str, list[list[int]]]] = []  # rule, and segments to count, grouped by rank
        self._nearby = MatchSurroundings(segments, self._view, engine.metrics, state, sizes)
        self._behind = segments.count  # the first segment after the windows of this chunk

    def run(self) -> list[Skipped | Window]:
        torn = self._searched.torn
        number = self._searched.counts_as % self._sizes.section
        dense = self._sizes.is_dense(self._searched.counts_as)
        self._mark(0, max(self._state.carry, self._sizes.row if dense else 0))
        self._behind = max(self._segments.count, self._state.carry)
        by_target = self._by_target(self._searched.hits.found)
        watches = len(self._engine.targets)
        self._tracebacks(by_target.pop(watches + WATCHES.index(TRACEBACK), ()))
        matched: set[int] = set()
        for target, units in by_target.items():  # targets of rules come before watches
            if target < watches:
                self._rule(target, units)
                matched.update(units)
            else:
                self._watch(target, units)
        self._severity(matched, dense)
        for unit in self._searched.heads:
            self._read(unit, BEFORE, AFTER)
        picked = self._metrics(number, dense or not self._searched.place)
        self._count()
        if torn:
            self._mask[0] = 0
        self._state.carry = self._behind - self._segments.count
        parts = self._parts(picked)
        return self._with_rest(parts) if torn else parts

    def _with_rest(self, parts: list[Skipped | Window]) -> list[Skipped | Window]:
        """Prepend the end of an overlong line that began in an earlier chunk, and return all parts."""
        rest, left = self._segments.raw(0, 1), parts[0]
        if not rest.endswith((b"\n", b"\r")) or not isinstance(left, Skipped):
            return parts
        ends = self._segments.line_ends(0, 1)
        after = (
            [left._replace(segments=left.segments - 1, ends=left.ends - ends)] if left.segments > 1 else []
        )
        return [Skipped(1, 0), Window(rest[-TAIL:]), *after, *parts[1:]]

    def _mark(self, first: int, behind: int) -> None:
        """Select a range of segments for reading. Segments outside this chunk are ignored."""
        first, behind = max(0, first), min(behind, len(self._mask))
        self._mask[first:behind] = b"\1" * (behind - first)

    def _mark_each(self, units: Iterable[int]) -> None:
        for unit in units:
            self._mask[unit] = 1

    def _is_new(self, unit: int) -> bool:
        """Return whether a segment has not been selected yet and is not part of a repeated traceback."""
        return not self._mask[unit] and unit not in self._named

    def _read(self, unit: int, before: int = 0, after: int = 0) -> None:
        self._mark(unit - before, unit + after + 1)
        self._behind = max(self._behind, unit + after + 1)

    def _read_near(self, unit: int, before: int, after: int) -> None:
        """Select a matching line, and the lines around it that have new content, for reading."""
        self._mask[unit] = 1
        if before or after:
            self._mark_each(self._nearby.informative(unit, before, after))
            self._behind = max(self._behind, unit + after + 1)

    def _by_target(self, found: Iterable[tuple[int, int]]) -> dict[int, list[int]]:
        by_target: dict[int, set[int]] = {}
        for pattern, unit in found:
            by_target.setdefault(self._engine.target_of[pattern], set()).add(unit)
        return {target: sorted(units) for target, units in sorted(by_target.items())}

    def _tracebacks(self, heads: Iterable[int]) -> None:
        behind = 0
        for head in heads:
            if head < behind:
                continue
            block = _traceback_at(self._segments, head)
            behind = block.behind
            if not block.whole:  # other output interrupts the traceback, or the chunk ends inside it
                after = self._state.allowed(-1, self._sizes.torn_tracebacks, 1) * 6 + 2
                after *= self._sizes.tracebacks_after
                self._read(head, TRACEBACK.before, block.behind - head + after)
                continue
            key = template_of(block.final)
            met = self._state.finals.get(key, 0)
            self._state.finals[key] = met + 1
            if met < self._sizes.tracebacks and len(self._state.finals) <= self._sizes.templates:
                self._read(head, TRACEBACK.before, block.behind - head + self._sizes.tracebacks_after)
            else:
                self._named.update(range(head, block.behind - 1))
                self._mark_each(block.naming)

    def _rule(self, number: int, units: list[int]) -> None:
        target = self._engine.targets[number]
        if target.is_context:  # a context only has to occur, so only a few of its lines are read
            allowed = self._state.allowed(number, self._sizes.contexts, len(units))
            self._mark_each(units[:allowed])
            return
        allowed = self._state.allowed(number, self._sizes.rule_lines, len(units))
        met = self._state.fired[number] - len(units)
        for order, unit in enumerate(units[:allowed]):
            self._read_near(unit, *self._state.window(met + order, self._sizes))
        for unit, rank in self._nearby.ends(number, units):
            self._mark_each(self._nearby.steps(unit, rank, ahead=target.page.harm == "by-progress"))
        if allowed < len(units):
            unread = [unit for unit in units[allowed:] if unit not in self._named]
            self._counted.append((target.page.id, _by_rank(target, self._segments, unread, self._lead)))

    def _count(self) -> None:
        """Select the first and last matches of frequent rules for reading, and count the other matches."""
        for _, groups in self._counted:
            for group in groups:
                self._mask[group[0]] = self._mask[group[-1]] = 1
        for rule, groups in self._counted:
            for group in groups:
                unread = len(group) - sum(self._mask[unit] for unit in group)
                if unread:
                    self._more.setdefault(group[-1], []).append((rule, unread))

    def _watch(self, target: int, units: list[int]) -> None:
        watch = WATCHES[target - len(self._engine.targets)]
        fresh = [unit for unit in units if self._is_new(unit)]
        for unit in fresh[: self._state.allowed(target, watch.budget, len(fresh))]:
            self._read(unit, watch.before, watch.after)

    def _severity(self, matched: set[int], dense: bool) -> None:
        """For each template that reports a problem, select one line. Lines that rules match are excluded."""
        worded = self._searched.hits.worded
        if dense:
            _, ends = self._engine.warning.hits(self._view, self._sizes.warnings)
            worded = worded.union(self._segments.at(ends))
        fresh = [unit for unit in sorted(worded) if unit not in matched and self._is_new(unit)]
        templates = self._state.templates
        for unit in fresh:
            key = template_of(self._segments.text(unit))
            met = templates.get(key, 0)
            if met:
                templates[key] = met = met + 1
                # The 2nd, 4th, 8th … line is read, which shows approximately where the last line is.
                if not met & (met - 1):
                    self._mask[unit] = 1
                    self._more.setdefault(unit, []).append(("", met // 2 - 1))
            elif len(templates) < self._sizes.templates and not self._mask[unit]:
                templates[key] = 1
                self._read(unit, *self._sizes.template)

    def _metrics(self, number: int, dense: bool) -> MetricOffsets:
        sizes, met, scanner = self._sizes, self._state.kinds, self._engine.metrics
        picked = None if dense else pick_last(scanner, self._view, met, sizes.probe)
        if picked is None:
            picked = pick(scanner, self._view, number, met, sizes.samples, sizes.probe)
        self._mark_each(self._segments.at([offset for _, offset in picked.first]))
        self._mark_each(self._segments.at(sorted(picked.last.values())))
        return picked

    def _parts(self, picked: MetricOffsets) -> list[Skipped | Window]:
        segments, last = self._segments, self._segments.count
        hidden, loss = self._hidden(picked), self._uncounted_loss(picked)
        parts: list[Skipped | Window] = []
        at = 0
        for first, behind in [*(marked.span() for marked in _MARKS.finditer(self._mask)), (last, last)]:
            if first > at:
                kinds = next((kinds for start, kinds in hidden if first > start), _NONE)
                losses = 0
                if loss is not None:
                    end = segments.start(first) if first < last else len(self._view)
                    losses = len(loss.findall(self._view, segments.start(at), end))
                parts.append(Skipped(first - at, segments.line_ends(at, first), kinds, losses))
            parts += self._pieces(first, behind)
            at = behind
        return parts

    def _pieces(self, first: int, behind: int) -> list[Window]:
        """Return the windows that cover a range of segments.

        A line that represents similar skipped lines has its own window.
        """
        segments = self._segments
        marks = sorted(unit for unit in self._more if first <= unit < behind) if self._more else []
        pieces = []
        for mark in marks:
            if mark > first:
                pieces.append(Window(segments.raw(first, mark), segments.record_head(first)))
            more = tuple(self._more[mark])
            pieces.append(Window(segments.raw(mark, mark + 1), segments.record_head(mark), more))
            first = mark + 1
        if first < behind:
            pieces.append(Window(segments.raw(first, behind), segments.record_head(first)))
        return pieces

    def _hidden(self, picked: MetricOffsets) -> list[tuple[int, frozenset[str]]]:
        """Return the segments after which metrics are skipped, each with the names of the skipped series.

        The entries are in reverse order of the segments.
        """
        offsets = {
            kind: offset
            for kind in range(len(KINDS))
            if (offset := picked.frequent(kind, self._sizes.samples)) is not None
        }
        if not offsets:
            return []
        starts = self._segments.at(list(offsets.values()))
        found: list[tuple[int, frozenset[str]]] = []
        series: frozenset[str] = _NONE
        for start, kind in sorted(zip(starts, offsets, strict=True)):
            series |= METRICS[kind].series
            found.append((start, series))
        return found[::-1]

    def _uncounted_loss(self, picked: MetricOffsets) -> re.Pattern[bytes] | None:
        """Return a pattern for skipped lines that have a loss but no step, or ``None`` if it is not needed.

        Such lines are counted only if the source contains no progress bar, because a bar shows the steps.
        """
        if picked.frequent(_DICT, self._sizes.samples) is None or _DICT not in picked.last:
            return None
        if _BAR in picked.last:
            return None
        unit = self._segments.at([picked.last[_DICT]])[0]
        text = self._segments.text(unit)
        if b"step" in text:
            return None
        # A search with a regular expression is a third faster than bytes.count.
        return next((re.compile(sign) for sign in _SIGNED if sign in text), None)


def _by_rank(
    target: Target, segments: Segments, units: list[int], lead: LinePrefix | None
) -> list[list[int]]:
    """Return the segments in which a rule matches, grouped by the rank of the lines.

    If the source has a `lead`, each segment is parsed, because only parsing shows where the prefix ends.
    """
    plain = lead is None and not segments.recorded
    sure = target.sure and plain
    if sure and not _MARKED.search(segments.view):
        return [units] if units else []
    free = sure or target.free

    def ranks(unit: int) -> Iterable[int | None]:
        """Return the ranks for which the rule matches in a segment.

        Usually, there is at most one such rank.
        """
        text = segments.text(unit)[:MAX_LINE]
        prefix = _RANK_PREFIX.match(text)
        unmarked = not _MARKED.search(text, prefix.end() if prefix else 0)
        if plain and unmarked and free:
            if sure or any(compile_re2(pattern).search(text) for pattern in target.patterns):
                return (int(prefix[1]) if prefix else None,)
            return ()
        reader = LineReader("", lead=lead)
        lines = [*reader.feed(segments.record_head(unit) + segments.raw(unit, unit + 1)), *reader.finish()]
        return {line.rank for line in lines if own_text(line.text) is None and (sure or target.fires(line))}

    found: dict[int | None, list[int]] = {}
    for unit in units:
        for rank in ranks(unit):
            found.setdefault(rank, []).append(unit)
    return list(found.values())


class _Traceback(NamedTuple):
    """A traceback, or several tracebacks that Python printed as a chain."""

    behind: int  #: the first segment after the final line of the traceback
    final: bytes  #: the final line of the traceback

    #: Segments that identify the traceback: the head, the innermost user frame, and the final line.
    naming: tuple[int, ...]
    whole: bool  #: True if the traceback is complete and no other lines are inside it


def _traceback_at(segments: Segments, head: int) -> _Traceback:
    naming: list[int] = []
    last = min(segments.count, head + _MOST_OF_TRACEBACKS)
    while True:
        first = segments.text(head)
        found = _TRACEBACK.search(first)
        prefix = first[: found.start()] if found else b""
        naming.append(head)
        user_frame = any_frame = -1
        at = head + 1
        while at < last:
            text = segments.text(at)
            if not text.startswith(prefix):
                if at == head + 1 and text.startswith(b"  File "):
                    prefix = b""  # the logger adds its prefix only to the first line of a message
                else:
                    return _Traceback(at, b"", (), False)
            if text[len(prefix) : len(prefix) + 1] not in (b" ", b"\t", b""):
                break
            if b'File "' in text:
                any_frame = at
                if not _LIBRARY.search(text):
                    user_frame = at
            at += 1
        if at >= last:
            return _Traceback(at, b"", (), False)
        if any_frame >= 0:
            naming.append(user_frame if user_frame >= 0 else any_frame)
        naming.append(at)
        chained = _chained(segments, at)
        if chained is None:
            return _Traceback(at + 1, segments.text(at)[len(prefix) :], tuple(naming), any_frame >= 0)
        marker, head = chained
        naming.append(marker)


def _chained(segments: Segments, final: int) -> tuple[int, int] | None:
    """Return two values: the line that links two tracebacks, and the head of the second traceback.

    Return ``None`` if no traceback follows.
    """
    marker = -1
    for at in range(final + 1, min(final + 1 + _CHAIN_LINES, segments.count)):
        text = segments.text(at)
        if _CHAIN.search(text):
            marker = at
        elif marker >= 0 and _TRACEBACK.search(text):
            return marker, at
    return None
