"""Compile the targets of a scan: the catalogue's patterns in their raw form, and other signs.

``signs.json`` lists the other signs that make a line worth reading in a log that is too long to be read in
full. Its patterns only select lines for the readers: too many patterns cost time, and a missing one loses
information. In ``watches``, ``before`` and ``after`` are numbers of lines around a hit that are also read,
``budget`` is the number read in a section, and for ``rare`` watches not every chunk is searched. Of lines
with a ``severe`` word, one of each template is read. A ``warning`` is on many lines of a healthy log, and is
searched only in some of the chunks. Each kind of ``metrics`` gets its share of a chunk; its ``series`` are
those to which its lines may belong.
"""

from __future__ import annotations

import functools
from bisect import bisect_left
from collections.abc import Collection, Sequence
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

import msgspec

from stallwatch_rules.matching.database import BlockScanner, DatabaseStore
from stallwatch_rules.matching.literal_index import LiteralIndex, is_anchored, is_certain, raw_form
from stallwatch_rules.matching.matcher import Matcher
from stallwatch_rules.pages.catalogue import scanned_rules
from stallwatch_rules.pages.page import RulePage
from stallwatch_rules.pages.patterns import hyperscan
from stallwatch_rules.records import Line
from stallwatch_rules.scan.segments import Segments

_DENSE = 4  #: if more than 1/4 of the segments contain a literal, all of the chunk is searched


class Watch(msgspec.Struct, frozen=True):
    """A kind of line that is read wherever it appears."""

    name: str
    patterns: tuple[str, ...]
    before: int
    after: int
    budget: int = 1 << 30
    rare: bool = False


class Metrics(msgspec.Struct, frozen=True):
    """A kind of line with training metrics."""

    kind: str
    patterns: tuple[str, ...]
    series: frozenset[str]


class _Signs(msgspec.Struct):
    watches: tuple[Watch, ...]
    severe: tuple[str, ...]
    warning: str
    metrics: tuple[Metrics, ...]


_signs = msgspec.json.decode(Path(__file__).with_name("signs.json").read_bytes(), type=_Signs)
WATCHES, METRICS = _signs.watches, _signs.metrics
TRACEBACK = WATCHES[0]
KINDS = tuple(one.kind for one in METRICS)
KIND_OF = tuple(kind for kind, one in enumerate(METRICS) for _ in one.patterns)  #: metric pattern → kind
#: The kinds of metrics by which steps are counted.
COUNTING = frozenset(number for number, one in enumerate(METRICS) if one.series)


class Target(NamedTuple):
    """A rule, or a rule's context, whose lines are counted together."""

    rule: str
    patterns: Sequence[str]
    is_context: bool
    excepts: bool  #: True if the rule has patterns of lines on which it does not fire
    by_progress: bool  #: True if the steps around the matches decide how harmful they are
    matcher: Matcher

    @classmethod
    def of(cls, page: RulePage, is_context: bool, matcher: Matcher) -> Target:
        """Return the target for the patterns, or the context, of a rule's page."""
        patterns = page.requires if is_context else page.patterns
        return cls(page.id, patterns, is_context, bool(page.unless), page.harm == "by-progress", matcher)

    @property
    def sure(self) -> bool:
        """True if every hit is a match."""
        return not self.excepts and all(map(is_certain, self.patterns))

    @property
    def free(self) -> bool:
        """True if the patterns match a raw line if they match the line that is read from it."""
        return not self.excepts and not any(map(is_anchored, self.patterns))

    def fires(self, line: Line) -> bool:
        """Return whether the rule fires on the line, once it is read."""
        scan = self.matcher.scan([line])
        return any(entry[1] == self.rule for entry in (scan.contexts if self.is_context else scan.matches))


class Hits(NamedTuple):
    """The hits in a chunk."""

    found: list[tuple[int, int]]  #: pattern and segment of each hit, with repeats
    worded: set[int]  #: segments with a severe word


class PatternScanner:
    """Search for the patterns that match in segments of a chunk: literals first, then patterns near them."""

    def __init__(
        self,
        patterns: Sequence[str],
        store: DatabaseStore,
        words: Sequence[str] = (),
        rare: Collection[int] = (),
    ) -> None:
        """Prepare the search for patterns and ``words``.

        ``rare`` contains the numbers of patterns for which not every chunk is searched.
        """
        self._all = LiteralIndex(patterns, store, words)
        self._given = patterns, store, words, rare
        bare = set(self._all.rest)
        self._covered = [number for number in range(len(patterns)) if number not in bare]

    @functools.cached_property
    def _most(self) -> LiteralIndex:
        """The index without the ``rare`` patterns, made on demand: the first chunks use the full one."""
        return LiteralIndex(*self._given) if self._given[-1] else self._all

    @functools.cached_property
    def _patterns(self) -> BlockScanner:
        """The scanner of the patterns that have literals, needed when a literal is found."""
        patterns, store, *_ = self._given
        return BlockScanner(store.compiled(tuple(raw_form(patterns[number]) for number in self._covered)))

    def compile(self) -> None:
        """Compile the parts that are otherwise compiled on demand."""
        _ = self._most, self._patterns

    def find(self, view: bytes, segments: Segments, *, everything: bool = True) -> Hits:
        """Return the hits in a chunk; if not ``everything``, without those of ``rare`` patterns."""
        index = self._all if everything else self._most
        found: list[tuple[int, int]] = []
        named: set[int] = set()
        worded: set[int] = set()
        hits, ends = index.hits(view)
        for number, unit in zip(hits, segments.at(ends), strict=True):
            if number < len(index.rest):
                found.append((index.rest[number], unit))
            else:
                (named if number < len(index.owners) else worded).add(unit)
        if named:
            if len(named) * _DENSE > segments.count:
                hits, ends = self._patterns.hits(view)
                units = segments.at(ends)
            else:
                order = sorted(named)
                pieces = [segments.text(unit) for unit in order]
                hits, ends = self._patterns.hits(b"\n".join(pieces))
                behind = [end + number for number, end in enumerate(accumulate(map(len, pieces)))]
                units = [order[bisect_left(behind, end)] for end in ends]
            found += zip((self._covered[number] for number in hits), units, strict=True)
        return Hits(found, worded)


class ScanEngine(NamedTuple):
    """The compiled patterns, which any number of scans share."""

    targets: tuple[Target, ...]
    target_of: tuple[int, ...]  #: index in ``targets`` for each pattern; higher numbers stand for ``WATCHES``
    patterns: PatternScanner  #: the rules' patterns, followed by those of ``WATCHES``
    warning: BlockScanner
    metrics: BlockScanner


def scan_engine(matcher: Matcher) -> ScanEngine | None:
    """Return the engine for a matcher's catalogue; ``None`` if blocks cannot be scanned."""
    if matcher.engine != "hyperscan":
        return None
    patterns: list[str] = []
    target_of: list[int] = []
    targets: list[Target] = []
    rare: set[int] = set()

    def add(target: int, more: Sequence[str], are_rare: bool) -> None:
        if are_rare:
            rare.update(range(len(patterns), len(patterns) + len(more)))
        patterns.extend(more)
        target_of.extend([target] * len(more))

    for page in scanned_rules(matcher.catalogue.pages.values()):
        for target in (Target.of(page, False, matcher), Target.of(page, True, matcher)):
            if target.patterns:
                # The text that a rule requires of other lines is usually near its match, where all lines are
                # read, or at the start of the log.
                add(len(targets), target.patterns, target.is_context)
                targets.append(target)
    for number, watch in enumerate(WATCHES):
        add(len(targets) + number, watch.patterns, watch.rare)
    store = matcher.catalogue.store
    try:
        scanner = PatternScanner(patterns, store, _signs.severe, rare)
    except hyperscan.error:  # users' patterns may exceed hyperscan's limits
        return None
    warning = BlockScanner(store.compiled((_signs.warning,)))
    metrics = BlockScanner(store.compiled(tuple(pattern for one in METRICS for pattern in one.patterns)))
    return ScanEngine(tuple(targets), tuple(target_of), scanner, warning, metrics)
