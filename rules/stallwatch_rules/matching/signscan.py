"""In which segments of a cell which patterns match: texts first, the patterns where a text stands."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, NamedTuple

from stallwatch_rules.matching.blockscan import BlockScanner
from stallwatch_rules.matching.covers_cache import covers_of
from stallwatch_rules.matching.database import DatabaseStore
from stallwatch_rules.matching.rawpatterns import raw_form
from stallwatch_rules.matching.segments import Segments
from stallwatch_rules.matching.textindex import TextIndex

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Numbers = NDArray[np.int64]

_DENSE = 4  #: where texts stand on more than 1/4 of the segments, all of the cell is looked through


class Found(NamedTuple):
    """Matches: ``patterns[i]`` in segment ``units[i]``; a segment may be named more than once."""

    patterns: Numbers
    units: Numbers
    worded: Numbers  #: segments with one of the words, each once


class SignScanner:
    """Looks for patterns in cells."""

    def __init__(
        self,
        patterns: Sequence[str],
        store: DatabaseStore,
        words: Sequence[str] = (),
        seldom: Collection[int] = (),
    ) -> None:
        """``words`` are looked for, too. ``seldom`` are numbers of patterns that not every cell is searched
        for."""
        covers = covers_of(patterns, store.folder)
        self._all = TextIndex(patterns, store, raw_form, words, covers=covers)
        self._most = TextIndex(patterns, store, raw_form, words, seldom, covers) if seldom else self._all
        bare = set(self._all.rest)
        self._covered = [number for number in range(len(patterns)) if number not in bare]
        covered = tuple(raw_form(patterns[number]) for number in self._covered)
        self._patterns = BlockScanner(store.compiled(covered)) if covered else None

    def find(self, view: bytes, segments: Segments, *, everything: bool = True) -> Found:
        """The matches in a cell."""
        import numpy as np

        index = self._all if everything else self._most
        hits, ends = index.hits(view)
        if not hits:
            return Found(*(np.empty(0, np.int64) for _ in range(3)))
        numbers = np.asarray(hits, dtype=np.int64)
        at = segments.at(ends)
        itself, is_word = numbers < len(index.rest), numbers >= len(index.owners)
        patterns = [np.asarray(index.rest, dtype=np.int64)[numbers[itself]]]
        units = [at[itself]]
        named = np.unique(at[~(itself | is_word)])
        if len(named) and self._patterns is not None:
            if len(named) * _DENSE > segments.count:
                hits, ends = self._patterns.hits(view)
                units.append(segments.at(ends))
            else:
                pieces = segments.texts(named)
                hits, ends = self._patterns.hits(b"\n".join(pieces))
                piece_ends = np.cumsum([len(piece) + 1 for piece in pieces]) - 1
                units.append(named[np.searchsorted(piece_ends, ends)])
            patterns.append(np.asarray([self._covered[number] for number in hits], dtype=np.int64))
        return Found(np.concatenate(patterns), np.concatenate(units), np.unique(at[is_word]))
