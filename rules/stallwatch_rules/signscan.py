"""In which segments of a cell which patterns match: texts first, the patterns where a text stands."""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import TYPE_CHECKING, NamedTuple

from stallwatch_rules.blockscan import BlockScanner
from stallwatch_rules.database import DatabaseStore
from stallwatch_rules.segments import Segments
from stallwatch_rules.textindex import TextIndex

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
        origins: Sequence[str],
        words: Sequence[str] = (),
        seldom: Container[int] = (),
    ) -> None:
        """``patterns`` in the form to look for in raw bytes; ``origins`` as they were written; ``words`` are
        looked for beside them. ``seldom`` are numbers of patterns that not every cell is searched for."""
        self._all = TextIndex(origins, store, patterns, words)
        self._most = TextIndex(origins, store, patterns, words, seldom)
        bare = set(self._all.rest)
        self._covered = [number for number in range(len(patterns)) if number not in bare]
        covered = tuple(patterns[number] for number in self._covered)
        self._patterns = BlockScanner(store.compiled(covered)) if covered else None

    def find(self, view: bytes, segments: Segments, *, everything: bool = True) -> Found:
        """The matches in a cell."""
        import numpy as np

        index = self._all if everything else self._most
        others, ends = index.others(view)
        numbers = [np.asarray(others, dtype=np.int64)]
        units = [segments.at(ends)]
        texts, ends = index.texts(view)
        at = segments.at(ends)
        is_word = np.asarray(texts, dtype=np.int64) >= len(index.owners)
        named = np.unique(at[~is_word])
        if len(named) and self._patterns is not None:
            if len(named) * _DENSE > segments.count:
                hits, ends = self._patterns.hits(view)
                units.append(segments.at(ends))
            else:
                pieces = segments.texts(named)
                hits, ends = self._patterns.hits(b"\n".join(pieces))
                piece_ends = np.cumsum([len(piece) + 1 for piece in pieces]) - 1
                units.append(named[np.searchsorted(piece_ends, ends)])
            numbers.append(np.asarray([self._covered[number] for number in hits], dtype=np.int64))
        return Found(np.concatenate(numbers), np.concatenate(units), np.unique(at[is_word]))
