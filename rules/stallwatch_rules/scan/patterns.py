"""Compile the patterns for a scan: the rules' patterns in raw form, and the patterns in ``signs.json``.

The patterns in ``signs.json`` select the lines to read in a log that is too long to be read completely. More
patterns take more time, but fewer patterns miss information. In ``watches``, ``before`` and ``after`` are the
numbers of lines around a hit that are also read. ``budget`` is the number of hits that are read in a section.
Only some of the chunks are searched for ``rare`` watches. If lines contain a ``severe`` word, one line of
each template is read. Many lines in the log of a healthy run contain a ``warning``, so only some of the
chunks are searched for warnings. In each chunk, a few lines of each kind of ``metrics`` are read. These lines
can belong to the ``series`` of their kind.
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
    """A kind of line that is read wherever it occurs. Matches of rules are handled separately."""

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
#: For each pattern that finds metrics, the index of its kind in ``METRICS``.
KIND_OF = tuple(number for number, kind in enumerate(METRICS) for _ in kind.patterns)
#: The kinds of metrics that show steps.
COUNTING = frozenset(number for number, kind in enumerate(METRICS) if kind.series)


class Target(NamedTuple):
    """The patterns of a rule or of its ``requires``.

    Hits of the patterns in a target are counted together.
    """

    page: RulePage
    is_context: bool  #: True if the patterns are from ``requires``
    matcher: Matcher

    @property
    def patterns(self) -> Sequence[str]:
        """The patterns for which a scan searches."""
        return self.page.requires if self.is_context else self.page.patterns

    @property
    def sure(self) -> bool:
        """True if every hit of the patterns is certainly a match of the rule."""
        return not self.page.unless and not self.page.when and all(map(is_certain, self.patterns))

    @property
    def free(self) -> bool:
        """True if the prefix of a line does not affect whether the line matches."""
        return not self.page.unless and not any(map(is_anchored, self.patterns))

    def fires(self, line: Line) -> bool:
        """Return whether the parsed line matches the rule.

        If the target is a context, return whether the line matches one of its patterns.
        """
        scan = self.matcher.scan([line])
        return any(entry[1] == self.page.id for entry in (scan.contexts if self.is_context else scan.matches))


class Hits(NamedTuple):
    """The segments of a chunk in which patterns or severe words were found."""

    found: list[tuple[int, int]]  #: pattern and segment of each hit; can contain duplicates
    worded: set[int]  #: segments that contain a severe word


class PatternScanner:
    """A scanner that searches chunks for patterns.

    The scanner first searches for literals and then searches for patterns only in segments with literals.
    """

    def __init__(
        self,
        patterns: Sequence[str],
        store: DatabaseStore,
        words: Sequence[str] = (),
        rare: Collection[int] = (),
    ) -> None:
        """Prepare the search for patterns and `words`.

        `rare` contains the indexes of patterns for which only some of the chunks are searched.
        """
        self._all = LiteralIndex(patterns, store, words)
        self._given = patterns, store, words, rare
        bare = set(self._all.rest)
        self._covered = [number for number in range(len(patterns)) if number not in bare]

    @functools.cached_property
    def _most(self) -> LiteralIndex:
        """The index of literals, excluding the literals of ``rare`` patterns.

        The first chunks are searched with the full index.
        """
        return LiteralIndex(*self._given) if self._given[-1] else self._all

    @functools.cached_property
    def _patterns(self) -> BlockScanner:
        """The scanner for patterns. It is compiled when the first literal is found."""
        patterns, store, *_ = self._given
        return BlockScanner(store.compiled(tuple(raw_form(patterns[number]) for number in self._covered)))

    def compile(self) -> None:
        """Compile all patterns immediately, instead of on first use."""
        _ = self._most, self._patterns

    def find(self, view: bytes, segments: Segments, *, everything: bool = True) -> Hits:
        """Return the hits in a chunk.

        Hits of ``rare`` patterns are included only if `everything` is true.
        """
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
    """The compiled patterns for which a scan searches. Several scans can share an engine."""

    targets: tuple[Target, ...]
    #: For each pattern, the index of its target in ``targets``. Higher indexes refer to ``WATCHES``.
    target_of: tuple[int, ...]
    patterns: PatternScanner  #: the patterns of the rules, followed by the patterns of ``WATCHES``
    warning: BlockScanner
    metrics: BlockScanner


def scan_engine(matcher: Matcher) -> ScanEngine | None:
    """Compile the patterns of all rules of a matcher. Return ``None`` if hyperscan is not available."""
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
                # The patterns of ``requires`` are treated as rare. They usually match near a match of the
                # rule, where more lines are read, or at the start of the log.
                add(len(targets), target.patterns, target.is_context)
                targets.append(target)
    for number, watch in enumerate(WATCHES):
        add(len(targets) + number, watch.patterns, watch.rare)
    store = matcher.catalogue.store
    try:
        scanner = PatternScanner(patterns, store, _signs.severe, rare)
    except hyperscan.error:  # the patterns of users can exceed the limits of hyperscan
        return None
    warning = BlockScanner(store.compiled((_signs.warning,)))
    metrics = BlockScanner(store.compiled(tuple(pattern for kind in METRICS for pattern in kind.patterns)))
    return ScanEngine(tuple(targets), tuple(target_of), scanner, warning, metrics)
