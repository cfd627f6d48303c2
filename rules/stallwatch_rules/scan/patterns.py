"""Compile the patterns that a scan searches for: those of the catalogue in raw form, and other patterns.

``signs.json`` contains the other patterns, which select lines to read in a log that is too long to be read in
full. More patterns take more time; with fewer patterns, information is lost. In ``watches``, ``before`` and
``after`` are the numbers of lines around a hit that are also read, and ``budget`` is the number of hits that
are read in a section; ``rare`` watches are not searched for in all chunks. Of lines with a ``severe`` word,
one line of each template is read. A ``warning`` is on many lines of a healthy log, so it is searched for only
in some of the chunks. A few lines of each kind of ``metrics`` are read in a chunk; they can belong to the
``series`` of that kind.
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

_DENSE = 4  #: if more than one in this many segments contains a literal, the whole chunk is searched


class Watch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A kind of line, other than a match of a rule, that is read wherever it occurs."""

    name: str
    patterns: tuple[str, ...]
    before: int
    after: int
    budget: int = 1 << 30
    rare: bool = False


class Metrics(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A kind of line with training metrics."""

    kind: str
    patterns: tuple[str, ...]
    series: frozenset[str]


class _Signs(msgspec.Struct, forbid_unknown_fields=True):
    watches: tuple[Watch, ...]
    severe: tuple[str, ...]
    warning: str
    metrics: tuple[Metrics, ...]


_signs = msgspec.json.decode(Path(__file__).with_name("signs.json").read_bytes(), type=_Signs)
WATCHES, METRICS = _signs.watches, _signs.metrics
TRACEBACK = WATCHES[0]
KINDS = tuple(kind.kind for kind in METRICS)
#: The number of the kind for each pattern of a metric.
KIND_OF = tuple(number for number, kind in enumerate(METRICS) for _ in kind.patterns)
#: The kinds of metrics that count steps.
COUNTING = frozenset(number for number, kind in enumerate(METRICS) if kind.series)


class Target(NamedTuple):
    """The patterns of a rule, or those of its ``requires``, whose hits are counted together."""

    page: RulePage
    is_context: bool  #: True for the patterns of ``requires``
    matcher: Matcher

    @property
    def patterns(self) -> Sequence[str]:
        """The patterns to search for."""
        return self.page.requires if self.is_context else self.page.patterns

    @property
    def sure(self) -> bool:
        """True if every hit of the patterns is a match of the rule."""
        return not self.page.unless and all(map(is_certain, self.patterns))

    @property
    def free(self) -> bool:
        """True if the prefixes of a line have no effect on whether the line matches."""
        return not self.page.unless and not any(map(is_anchored, self.patterns))

    def fires(self, line: Line) -> bool:
        """Return whether the parsed line matches the rule or, for a context, one of its patterns."""
        scan = self.matcher.scan([line])
        return any(entry[1] == self.page.id for entry in (scan.contexts if self.is_context else scan.matches))


class Hits(NamedTuple):
    """Where the patterns of a scan were found in a chunk."""

    found: list[tuple[int, int]]  #: pattern and segment of each hit; can contain duplicates
    worded: set[int]  #: segments with a severe word


class PatternScanner:
    """Scanner of chunks for patterns. It searches for literals first, and then only where they occur."""

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
        """The index of literals without those of ``rare`` patterns. The first chunks use the full index."""
        return LiteralIndex(*self._given) if self._given[-1] else self._all

    @functools.cached_property
    def _patterns(self) -> BlockScanner:
        """The scanner for patterns. It is compiled when the first literal is found."""
        patterns, store, *_ = self._given
        return BlockScanner(store.compiled(tuple(raw_form(patterns[number]) for number in self._covered)))

    def compile(self) -> None:
        """Compile everything now that is otherwise compiled when it is first needed."""
        _ = self._most, self._patterns

    def find(self, view: bytes, segments: Segments, *, everything: bool = True) -> Hits:
        """Return the hits in a chunk, with those of ``rare`` patterns only if ``everything`` is true."""
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
    """The compiled patterns that a scan searches for. Several scans can share them."""

    targets: tuple[Target, ...]
    target_of: tuple[int, ...]  #: index in ``targets`` for each pattern; higher numbers stand for ``WATCHES``
    patterns: PatternScanner  #: the rules' patterns, followed by those of ``WATCHES``
    warning: BlockScanner
    metrics: BlockScanner


def scan_engine(matcher: Matcher) -> ScanEngine | None:
    """Compile the patterns for a matcher's rules. ``None`` if hyperscan cannot be used."""
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
        for target in (Target(page, False, matcher), Target(page, True, matcher)):
            if target.patterns:
                # The patterns of ``requires`` are rare, because they usually match near the rule's match,
                # where more lines are read, or at the start of the log.
                add(len(targets), target.patterns, target.is_context)
                targets.append(target)
    for number, watch in enumerate(WATCHES):
        add(len(targets) + number, watch.patterns, watch.rare)
    store = matcher.catalogue.store
    try:
        scanner = PatternScanner(patterns, store, _signs.severe, rare)
    except hyperscan.error:  # patterns of users can exceed hyperscan's limits
        return None
    warning = BlockScanner(store.compiled((_signs.warning,)))
    metrics = BlockScanner(store.compiled(tuple(pattern for kind in METRICS for pattern in kind.patterns)))
    return ScanEngine(tuple(targets), tuple(target_of), scanner, warning, metrics)
