"""In which segments of a cell which patterns match: texts first, the patterns where a text stands."""

from __future__ import annotations

from collections.abc import Sequence
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


class SignScanner:
    """Looks for patterns in cells."""

    def __init__(self, patterns: Sequence[str], store: DatabaseStore, origins: Sequence[str]) -> None:
        """``patterns`` in the form to look for in raw bytes; ``origins`` as they were written."""
        self._index = TextIndex(origins, store, patterns)
        covered = [number for number in range(len(patterns)) if number not in set(self._index.rest)]
        self._covered = covered
        self._patterns = (
            BlockScanner(store.compiled(tuple(patterns[number] for number in covered))) if covered else None
        )

    def find(self, view: bytes, segments: Segments) -> Found:
        """The matches in a cell."""
        import numpy as np

        others = self._index.others(view)
        numbers = [np.asarray([number for number, _ in others], dtype=np.int64)]
        units = [segments.at([end for _, end in others])]
        texts = self._index.texts(view)
        if texts and self._patterns is not None:
            named = np.unique(segments.at([end for _, end in texts]))
            if len(named) * _DENSE > segments.count:
                hits = self._patterns.hits(view)
                units.append(segments.at([end for _, end in hits]))
            else:
                pieces = segments.texts(named)
                hits = self._patterns.hits(b"\n".join(pieces))
                ends = np.cumsum([len(piece) + 1 for piece in pieces]) - 1
                units.append(named[np.searchsorted(ends, [end for _, end in hits])])
            covered = self._covered
            numbers.append(np.asarray([covered[number] for number, _ in hits], dtype=np.int64))
        return Found(np.concatenate(numbers), np.concatenate(units))
