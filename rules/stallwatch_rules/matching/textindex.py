"""Many patterns looked for by their fixed texts (``covers``): several times quicker than by the patterns.

One pass of hyperscan looks for the texts, and for the few patterns that have none. Only where something was
found are the patterns themselves tried.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Container, Sequence

from stallwatch_rules.matching.blockscan import BlockScanner, Hits
from stallwatch_rules.matching.covers import Cover, Text
from stallwatch_rules.matching.covers_cache import covers_of
from stallwatch_rules.matching.database import DatabaseStore
from stallwatch_rules.matching.rawpatterns import raw_form
from stallwatch_rules.pages.patterns import hyperscan


class TextIndex:
    """The fixed texts of a list of patterns, and which patterns each stands for."""

    def __init__(
        self,
        patterns: Sequence[str],
        store: DatabaseStore,
        raw: Callable[[str], str] = str,
        words: Sequence[str] = (),
        without: Container[int] = (),
        covers: Sequence[Cover | None] | None = None,
    ) -> None:
        """``raw`` gives the form in which a pattern without a text is looked for.

        ``words`` are looked for, too; their numbers follow those of ``owners``. ``without`` are patterns
        that are not looked for; ``covers`` those of the patterns, where they are known.
        """
        known = covers if covers is not None else covers_of(patterns, store.folder)
        texts: dict[Text, list[int]] = {}
        rest: list[int] = []
        for number, cover in enumerate(known):
            if number in without:
                continue
            if cover is None:
                rest.append(number)
            for text in sorted(cover or ()):
                texts.setdefault(text, []).append(number)
        self.rest = tuple(rest)  #: patterns that have no text: they themselves are found
        #: what each number that is found stands for: one of ``rest``, then the patterns of each text
        self.owners = (*((number,) for number in rest), *map(tuple, texts.values()))
        looked_for = (*texts, *map(Text, words))
        self._scanner: BlockScanner | None = None
        if rest or looked_for:
            self._scanner = BlockScanner(
                store.compiled(
                    tuple(raw(patterns[number]) for number in rest),
                    tuple((text.text, text.caseless) for text in looked_for),
                )
            )

    def hits(self, data: bytes | memoryview) -> Hits:
        """What was found; the numbers are those of ``owners``, then of the words."""
        return self._scanner.hits(data) if self._scanner is not None else ([], [])


@functools.lru_cache(maxsize=4)
def rules_index(patterns: tuple[str, ...], store: DatabaseStore) -> TextIndex:
    """The index of a catalogue's patterns, for lines and for raw bytes alike: made once for all who ask.

    Raises ``hyperscan.error`` where there can be none.
    """
    return TextIndex(patterns, store, raw_form)


def matchable(patterns: tuple[str, ...], store: DatabaseStore) -> bool:
    """Whether hyperscan, where it is installed, can look for these patterns together."""
    if hyperscan is None or not patterns:
        return True
    try:
        rules_index(patterns, store)
    except hyperscan.error:
        return False
    return True
