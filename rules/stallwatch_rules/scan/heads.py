"""Find the positions in a long log at which the beginning of the log recurs, for example, after a restart.

The module ``starts`` decides whether the program was restarted.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from itertools import pairwise

from stallwatch_rules.matching.database import BlockScanner
from stallwatch_rules.pages.patterns import compile_hyperscan
from stallwatch_rules.scan.segments import Segments
from stallwatch_rules.text.lazy import lazy

REACH = 16 * 1024  #: number of bytes at the start of a source that are searched for identifying texts
BEFORE, AFTER = 4, 60  #: numbers of segments to read before and after a repeated beginning
_MOST_TEXTS = 12
_LEAST = 12  # minimum number of characters in an identifying text

# Maximum number of occurrences of a text in the first bytes. An identifying text can occur once for each
# rank. More frequent texts are ignored.
_OFTEN = 8
_MOST_HITS = 256  # if a chunk contains this many occurrences of the texts, they do not identify a beginning
_TOGETHER = 40  # maximum number of segments between two texts of the same beginning
_PIECE = lazy(rb"[^\x00-\x1f\x7f-\xff0-9%|]{12,}")


def head_texts(head: bytes) -> tuple[str, ...]:
    """Return strings that identify the beginning of a source.

    For each of the first lines, the string is the longest part without digits.
    """
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


@functools.lru_cache(maxsize=16)  # the logs of different ranks have the same beginning
def head_scanner(texts: tuple[str, ...]) -> BlockScanner | None:
    """Return a scanner for the strings, or ``None`` if there are too few strings to identify a beginning."""
    if len(texts) < 2:
        return None
    return BlockScanner(compile_hyperscan((), tuple((text, False) for text in texts)))


def heads_in(scanner: BlockScanner, segments: Segments) -> Sequence[int]:
    """Return the segments that contain an identifying string and are closely followed by another one."""
    numbers, ends = scanner.hits(segments.view, _MOST_HITS)
    if len(ends) == _MOST_HITS:
        return ()
    places = list(zip(segments.at(ends), numbers, strict=True))
    return [
        unit
        for (unit, number), (later, other) in pairwise(places)
        if other != number and later - unit <= _TOGETHER
    ]
