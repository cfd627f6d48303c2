"""Match rules against lines: find the lines that each rule matches, and the captures of its groups.

Matching is case-sensitive and takes linear time. Only the first ``MAX_CHARACTERS`` characters of each line
are searched. Several threads can share a ``Matcher``.
"""

from __future__ import annotations

import functools
import os
from bisect import bisect_left
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import re2

from stallwatch_rules.lines.reader import MAX_LINE, LineReader
from stallwatch_rules.matching.database import DatabaseStore
from stallwatch_rules.matching.literal_index import literal_index
from stallwatch_rules.pages.catalogue import Catalogue, scanned_patterns, scanned_rules
from stallwatch_rules.pages.comparisons import parse_comparison
from stallwatch_rules.pages.page import RulePage
from stallwatch_rules.pages.patterns import cached_re2, hyperscan
from stallwatch_rules.records import Line

#: Maximum memory, in bytes, of the automaton of a google-re2 set. The default of 8 MiB is too small.
SET_MEMORY = 256 << 20

Candidate = tuple[int, int]  #: line index, pattern index


Prefilter = Callable[[Sequence[str]], set[Candidate]]  #: function that returns all candidates for matches


def hyperscan_prefilter(patterns: Sequence[str], store: DatabaseStore) -> Prefilter:
    """Return a function that finds candidates for matches in joined lines at over 1 GB/s per core.

    The function uses hyperscan to search for the fixed strings of the patterns.
    """
    index = literal_index(tuple(patterns), store)

    def candidates(texts: Sequence[str]) -> set[Candidate]:
        joined = "\n".join(texts)
        data = joined.encode("utf-8", "replace")
        hits = [(index.owners[number], end) for number, end in zip(*index.hits(data), strict=True)]
        if not hits:
            return set()
        # The end offset of each line. A match usually ends in the line in which it begins. However, a
        # negated class can match newlines, so a match can also end in a later line. This later line is not
        # confirmed. Hyperscan reports every possible end of a match, so the hits also contain the end in
        # the first line.
        ascii_only = len(data) == len(joined)
        lengths = (len(text if ascii_only else text.encode("utf-8", "replace")) for text in texts)
        ends = [end + line for line, end in enumerate(accumulate(lengths))]
        return {(bisect_left(ends, end), pattern) for patterns, end in hits for pattern in patterns}

    return candidates


def re2_prefilter(patterns: Sequence[str]) -> Prefilter:
    """Return a function that finds candidates line by line, for use if hyperscan is not installed.

    The function processes about 200 MB/s.
    """
    options = re2.Options()
    options.log_errors = False
    options.max_mem = SET_MEMORY
    patterns_set = re2.Set.SearchSet(options)
    for pattern in patterns:
        patterns_set.Add(pattern.encode())
    patterns_set.Compile()

    def candidates(texts: Sequence[str]) -> set[Candidate]:
        found: set[Candidate] = set()
        for index, text in enumerate(texts):
            # The result is None if no pattern matches.
            numbers = patterns_set.Match(text.encode("utf-8", "replace")) or ()
            found.update((index, number) for number in numbers)
        return found

    return candidates


MAX_CHARACTERS = MAX_LINE  #: maximum number of characters of a line that are searched
MAX_CAPTURE = 1024  #: maximum number of characters of a capture that are stored

#: Environment variable. The value "re2" selects google-re2 even if hyperscan is installed.
ENGINE_VARIABLE = "STALLWATCH_MATCHER"

Hit = tuple[int, str, dict[str, str]]  #: line index, rule ID, captures


class Scan(NamedTuple):
    """The rules that match in one portion of lines, and the lines that match the ``requires`` of rules."""

    #: Hits sorted by line, then by position in the catalogue, with at most one hit for each line and rule.
    matches: list[Hit]
    contexts: list[tuple[int, str]]  #: line index, and ID of a rule whose ``requires`` matches the line


class Matcher:
    """A matcher for a catalogue's patterns. It compiles the patterns when the first line arrives.

    ``match`` applies ``unless`` and ``when``, which refer only to the line itself. It does not apply the
    patterns of ``requires``, because these can match any line of the same source and rank, including later
    lines. A caller that reads a run in portions calls ``scan`` and stores ``(line.source, line.rank, rule)``
    for each entry of ``Scan.contexts``. At the end, the caller counts a match of a rule in ``conditional``
    only if the triple for the match is stored. If all lines are available, ``match_stream`` does all of this.
    """

    def __init__(self, catalogue: Catalogue) -> None:
        self.catalogue = catalogue
        self._wanted = os.environ.get(ENGINE_VARIABLE, "")
        self._pages = scanned_rules(catalogue.pages.values())
        #: IDs of the rules that have ``requires``.
        self.conditional = frozenset(page.id for page in self._pages if page.requires)

    @property
    def engine(self) -> str:
        """The name of the engine: ``hyperscan``, ``re2``, or ``none`` if there are no patterns."""
        if not scanned_patterns(self._pages):
            return "none"
        return "re2" if self._wanted == "re2" or hyperscan is None else "hyperscan"

    @functools.cached_property
    def _candidates(self) -> Prefilter:
        patterns = scanned_patterns(self._pages)
        if self.engine == "hyperscan":
            return hyperscan_prefilter(patterns, self.catalogue.store)
        return re2_prefilter(patterns) if patterns else lambda _: set()

    @functools.cached_property
    def _parts(self) -> list[_Part]:
        return [
            _Part(order, page, pattern, is_context)
            for order, page in enumerate(self._pages)
            for patterns, is_context in ((page.patterns, False), (page.requires, True))
            for pattern in patterns
        ]

    def match(self, lines: Sequence[Line]) -> list[Hit]:
        """Return the rules that match lines, each with the line index and the captures.

        The patterns of ``requires`` are ignored.
        """
        return self.scan(lines).matches

    def scan(self, lines: Sequence[Line]) -> Scan:
        """Return the rules that match lines, and the lines that match the ``requires`` of rules."""
        texts = _looked_at(lines)
        return self._confirmed(texts, sorted(self._candidates(texts)))

    def confirm(self, lines: Sequence[Line], numbers: Collection[int]) -> list[Hit]:
        """Return the rules that match lines. `numbers` contains the indexes of the patterns to use."""
        candidates = [(index, number) for index in range(len(lines)) for number in sorted(numbers)]
        return self._confirmed(_looked_at(lines), candidates).matches

    def matched(self, lines: Sequence[Line]) -> set[str]:
        """Return the rules with a matching pattern, including rules that ``unless`` or ``when`` excludes."""
        texts = _looked_at(lines)
        found = [(texts[index], self._parts[number]) for index, number in self._candidates(texts)]
        return {
            part.page.id
            for text, part in found
            if not part.is_context and part.search(text.encode("utf-8", "replace")) is not None
        }

    def _confirmed(self, texts: Sequence[str], candidates: Sequence[Candidate]) -> Scan:
        captures: dict[tuple[int, int], dict[str, str]] = {}
        contexts: dict[tuple[int, str], None] = {}
        encoded, current = b"", -1
        for index, number in candidates:
            if index != current:
                encoded, current = texts[index].encode("utf-8", "replace"), index
            part = self._parts[number]
            found = part.search(encoded)
            if found is None:
                continue
            if part.is_context:
                contexts[index, part.page.id] = None
            elif not part.excluded(encoded):
                kept = captures.setdefault((index, part.order), {})
                for name, value in found.groupdict().items():
                    if value is not None:
                        kept.setdefault(name.decode(), value.decode("utf-8", "replace")[:MAX_CAPTURE])
        return Scan(
            [
                (index, self._pages[order].id, captures[index, order])
                for index, order in sorted(captures)
                if _fits(self._pages[order], captures[index, order])
            ],
            list(contexts),
        )

    def match_stream(self, lines: Sequence[Line]) -> list[Hit]:
        """Return the rules that match, with ``requires`` applied.

        `lines` must contain all lines of the run.
        """
        matches, contexts = self.scan(lines)
        seen = {(lines[index].source, lines[index].rank, rule) for index, rule in contexts}
        return [
            hit
            for hit in matches
            if hit[1] not in self.conditional or (lines[hit[0]].source, lines[hit[0]].rank, hit[1]) in seen
        ]

    def match_text(self, text: str) -> list[tuple[int, str, dict[str, str]]]:
        """Return the rules that match `text`, each with the line number (counted from 1) and the captures."""
        lines = lines_of(text)
        return [(lines[index].number, rule, captures) for index, rule, captures in self.match_stream(lines)]


def _looked_at(lines: Sequence[Line]) -> list[str]:
    return [text if len(text := line.text) <= MAX_CHARACTERS else text[:MAX_CHARACTERS] for line in lines]


def lines_of(text: str, source: str = "text") -> list[Line]:
    """Parse text as a log file. Return its lines with ranks and times but without prefixes."""
    reader = LineReader(source)
    return [*reader.feed(text.encode("utf-8", "replace")), *reader.finish()]


class _Part(NamedTuple):
    """One pattern of the matcher. The prefilter numbers the patterns in the same order."""

    order: int  #: index of the rule in the catalogue
    page: RulePage
    pattern: str
    is_context: bool

    def search(self, encoded: bytes) -> Any:
        """Search a line for the pattern.

        The pattern is compiled on first use, because most patterns never match.
        """
        return cached_re2(self.pattern).search(encoded)

    def excluded(self, encoded: bytes) -> bool:
        return any(cached_re2(pattern).search(encoded) is not None for pattern in self.page.unless)


def _fits(page: RulePage, captures: Mapping[str, str]) -> bool:
    """Return whether the captures of a line violate none of the page's ``when`` comparisons."""
    comparisons = map(parse_comparison, page.when)
    return all(comparison is None or comparison.holds(captures) is not False for comparison in comparisons)
