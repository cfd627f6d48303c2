"""Search large amounts of source for phrases of neighboring words, in one pass for all phrases."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import re2

from stallwatch_rules.matching.database import BlockScanner
from stallwatch_rules.pages.patterns import hyperscan

Phrase = tuple[str, ...]
"""Up to three neighboring words."""

_BETWEEN = r"[^\w\x00]+"  # includes quotes and line breaks of source; NUL ends a compiled string
_MEMORY = 512 << 20  # maximum number of bytes for google-re2; a larger set finds nothing
_LONG = 6  # minimum number of words for two disjoint phrases of three words


def rare_phrases(words: Sequence[str]) -> list[Phrase]:
    """Return the longest phrase of the words and the longest phrase that does not overlap with it.

    If the source inserts a value into the text, this value breaks only one of the two phrases.
    """
    size = min(3 if len(words) >= _LONG else 2, len(words))
    by_length = sorted(range(len(words) - size + 1), key=lambda at: -sum(map(len, words[at : at + size])))
    first = by_length[0]
    beside = [at for at in by_length if abs(at - first) >= size] or by_length[1:]
    return [tuple(words[at : at + size]) for at in (first, *beside[:1])]


class Phrases:
    """A case-insensitive searcher for phrases. It uses hyperscan or, if that is missing, google-re2."""

    def __init__(self, phrases: Sequence[Phrase]) -> None:
        self._phrases = list(phrases)
        self._expressions = [_BETWEEN.join(map(re.escape, phrase)).encode() for phrase in self._phrases]
        self._scanner: BlockScanner | None = None
        self._each: Any = None
        self._any: Any = None
        if not phrases:
            return
        if hyperscan is not None:
            self._scanner = _scanner(self._expressions)
        else:
            self._each, self._any = _sets(self._expressions)

    def hits(self, data: bytes) -> list[tuple[Phrase, int]]:
        """Return each occurrence of a phrase in the bytes, with the position where the occurrence ends."""
        if self._scanner is not None:
            return [
                (self._phrases[number], end) for number, end in zip(*self._scanner.hits(data), strict=True)
            ]
        numbers = self._each.Match(data) if self._each is not None else None
        return [
            (self._phrases[number], found.end())
            for number in numbers or ()  # None if no phrase matches
            for found in re2.compile(self._expressions[number], _options()).finditer(data)
        ]

    def ends(self, data: bytes) -> list[int]:
        """Return the positions where phrases end in a block of bytes, in ascending order."""
        if self._scanner is not None:
            return self._scanner.hits(data)[1]
        return [found.end() for found in self._any.finditer(data)] if self._any is not None else []


def _scanner(expressions: Sequence[bytes]) -> BlockScanner:
    database = hyperscan.Database(mode=hyperscan.HS_MODE_BLOCK)
    database.compile(
        expressions=list(expressions),
        ids=list(range(len(expressions))),
        flags=[hyperscan.HS_FLAG_CASELESS] * len(expressions),
    )
    return BlockScanner(database)


def _sets(expressions: Sequence[bytes]) -> tuple[Any, Any]:
    each = re2.Set.SearchSet(_options())
    for expression in expressions:
        each.Add(expression)
    each.Compile()
    return each, re2.compile(b"|".join(expressions), _options())


def _options() -> Any:
    options = re2.Options()
    options.max_mem = _MEMORY
    options.case_sensitive = False
    options.encoding = re2.Options.Encoding.LATIN1  # compiled files are not UTF-8
    return options
