"""Which patterns may match which lines, found fast: hyperscan over all lines at once, or a google-re2 set.

A prefilter never misses a match and may name a few too many; the matcher confirms each on its line.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate
from typing import Protocol

import re2

from stallwatch_rules.matching.database import DatabaseStore
from stallwatch_rules.matching.textindex import rules_index
from stallwatch_rules.pages.patterns import hyperscan

SET_MEMORY = (
    256 << 20
)  #: bytes that a google-re2 set may use for its automaton; the default 8 MiB is few rules

Candidate = tuple[int, int]  #: index of the line, index of the pattern


class Prefilter(Protocol):
    """Finds the candidates among the lines."""

    name: str

    def candidates(self, texts: Sequence[str], /) -> set[Candidate]:
        """Every (line, pattern) that may match."""


class Hyperscan:
    """Looks for the patterns' fixed texts in the joined lines in one call, more than 1 GB/s a core."""

    name = "hyperscan"

    def __init__(self, patterns: Sequence[str], store: DatabaseStore) -> None:
        self._index = rules_index(tuple(patterns), store)

    def candidates(self, texts: Sequence[str]) -> set[Candidate]:
        """Every (line, pattern) that may match."""
        joined = "\n".join(texts)
        data = joined.encode("utf-8", "replace")
        owners = self._index.owners
        hits = [(owners[number], end) for number, end in zip(*self._index.hits(data), strict=True)]
        if not hits:
            return set()
        # Where each line ends. A match ends inside its line or at its end; one that runs over a line's end
        # (a negated class takes newlines too) is put down to a later line, where it will not be confirmed:
        # hyperscan reports every end, so the one inside the line is among the hits as well.
        ascii_only = len(data) == len(joined)
        lengths = (len(text if ascii_only else text.encode("utf-8", "replace")) for text in texts)
        ends = [end + line for line, end in enumerate(accumulate(lengths))]
        return {(bisect_left(ends, end), pattern) for patterns, end in hits for pattern in patterns}


class Re2Set:
    """Line by line, about 200 MB/s: for platforms without hyperscan."""

    name = "re2"

    def __init__(self, patterns: Sequence[str]) -> None:
        options = re2.Options()
        options.log_errors = False
        options.max_mem = SET_MEMORY
        self._set = re2.Set.SearchSet(options)
        for pattern in patterns:
            self._set.Add(pattern.encode())
        self._set.Compile()

    def candidates(self, texts: Sequence[str]) -> set[Candidate]:
        """Every (line, pattern) that may match."""
        found: set[Candidate] = set()
        match = self._set.Match
        for index, text in enumerate(texts):
            patterns = match(text.encode("utf-8", "replace"))
            if patterns:
                found.update((index, pattern) for pattern in patterns)
        return found


class Nothing:
    """The prefilter of no patterns, which both engines refuse to compile."""

    name = "none"

    def candidates(self, _texts: Sequence[str], /) -> set[Candidate]:
        """None."""
        return set()


def prefilter(patterns: Sequence[str], engine: str = "", store: DatabaseStore | None = None) -> Prefilter:
    """The fastest that runs here; ``engine`` may ask for ``re2``. ``store`` keeps what is compiled."""
    if not patterns:
        return Nothing()
    if engine == "re2" or hyperscan is None:
        return Re2Set(patterns)
    return Hyperscan(patterns, store or DatabaseStore())
