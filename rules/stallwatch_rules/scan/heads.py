"""Find where the beginning of a long log occurs again, which can show that its program was restarted.

The module ``starts`` decides whether it was.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from itertools import pairwise

from stallwatch_rules.matching.database import BlockScanner
from stallwatch_rules.pages.patterns import compile_hyperscan
from stallwatch_rules.scan.segments import Segments
from stallwatch_rules.text.lazy import lazy

REACH = 16 * 1024  #: number of bytes at the start of a source from which texts are taken
BEFORE, AFTER = 4, 60  #: number of segments to read before and after a repeat
_MOST_TEXTS = 12
_LEAST = 12  # minimum length of a text, in characters
_OFTEN = 8  # maximum number of occurrences of a text in a head (one per rank); frequent texts are ignored
_MOST_HITS = 256  # number of hits in a chunk from which the texts do not identify a head
_TOGETHER = 40  # maximum number of segments between two texts of a head
_PIECE = lazy(rb"[^\x00-\x1f\x7f-\xff0-9%|]{12,}")


def head_texts(head: bytes) -> tuple[str, ...]:
    """Return, for each of the first lines of a source, its longest part without digits."""
    found: list[bytes] = []
    seen: set[bytes] = set()
    for line in head[:REACH].splitlines()[: 4 * _MOST_TEXTS]:
        piece = max(_PIECE.findall(line), key=len, default=b"").strip()[:80]
        if piece in seen:
            continue
        seen.add(piece)
        if len(piece) >= _LEAST and head.count(piece, 0, REACH) <= _OFTEN:
            found.append(piece)
        if len(found) == _MOST_TEXTS:
            break
    return tuple(piece.decode() for piece in found)


@functools.lru_cache(maxsize=16)  # the logs of different ranks begin in the same way
def head_scanner(texts: tuple[str, ...]) -> BlockScanner | None:
    """Return a scanner that finds the texts; ``None`` if there are too few texts to identify a beginning."""
    if len(texts) < 2:
        return None
    return BlockScanner(compile_hyperscan((), tuple((text, False) for text in texts)))


def heads_in(scanner: BlockScanner, segments: Segments) -> Sequence[int]:
    """Return the segments in which a text of the head is closely followed by another text of the head."""
    numbers, ends = scanner.hits(segments.view, _MOST_HITS)
    if len(ends) == _MOST_HITS:
        return ()
    places = list(zip(segments.at(ends), numbers, strict=True))
    return [
        unit
        for (unit, number), (later, other) in pairwise(places)
        if other != number and later - unit <= _TOGETHER
    ]
