"""Many patterns looked for by their fixed texts (``covers``): several times quicker than by the patterns.

Two hyperscan databases look through a block: one of texts alone, one of the few patterns that have none.
Only where something was found are the patterns themselves tried.
"""

from __future__ import annotations

import re
from collections.abc import Container, Sequence
from typing import Any

from stallwatch_rules.blockscan import BlockScanner, Hits
from stallwatch_rules.covers import Text
from stallwatch_rules.covers_cache import covers_of
from stallwatch_rules.database import DatabaseStore
from stallwatch_rules.patterns import hyperscan


class TextIndex:
    """The fixed texts of a list of patterns, and which patterns each stands for."""

    def __init__(
        self,
        patterns: Sequence[str],
        store: DatabaseStore,
        raw: Sequence[str] | None = None,
        words: Sequence[str] = (),
        without: Container[int] = (),
    ) -> None:
        """``raw`` are the forms in which patterns without a text are looked for, where that differs.

        ``words`` are looked for, too; their numbers follow those of ``owners``. ``without`` are patterns
        that are not looked for.
        """
        owners: dict[Text, list[int]] = {}
        rest: list[int] = []
        for number, cover in enumerate(covers_of(patterns, store.folder)):
            if number in without:
                continue
            if cover is None:
                rest.append(number)
            for text in sorted(cover or ()):
                owners.setdefault(text, []).append(number)
        self.owners = tuple(map(tuple, owners.values()))  #: patterns by text
        self.rest = tuple(rest)  #: patterns without one
        texts = (*owners, *map(Text, words))
        self._texts = BlockScanner(_compiled(texts)) if texts else None
        shown = raw if raw is not None else patterns
        self._rest = BlockScanner(store.compiled(tuple(shown[number] for number in rest))) if rest else None

    def texts(self, data: bytes | memoryview) -> Hits:
        """Where texts stand; the number is that of ``owners``."""
        return self._texts.hits(data) if self._texts is not None else ([], [])

    def others(self, data: bytes | memoryview) -> Hits:
        """Where patterns without a text match; the number is the pattern's."""
        if self._rest is None:
            return [], []
        numbers, ends = self._rest.hits(data)
        return [self.rest[number] for number in numbers], ends


def matchable(patterns: Sequence[str], store: DatabaseStore) -> bool:
    """Whether hyperscan, where it is installed, can look for these patterns together."""
    if hyperscan is None or not patterns:
        return True
    try:
        TextIndex(patterns, store)
    except hyperscan.error:
        return False
    return True


def _compiled(texts: Sequence[Text]) -> Any:
    """Compiling texts alone takes a moment, so nothing of it is kept."""
    database = hyperscan.Database(mode=hyperscan.HS_MODE_BLOCK)
    database.compile(
        expressions=[re.escape(text.text.encode()) for text in texts],
        ids=list(range(len(texts))),
        elements=len(texts),
        flags=[hyperscan.HS_FLAG_CASELESS if text.caseless else 0 for text in texts],
    )
    return database
