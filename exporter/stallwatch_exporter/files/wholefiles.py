"""JSON files that are no lines of a log but tell of them, and so are read as a whole first."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any

_LARGEST = 256 * 1024**2
_OTHERWISE = (ValueError, KeyError, TypeError, AttributeError, RecursionError)


def lines_of_whole(chunks: Iterator[bytes], told: Callable[[Any], Iterable[bytes]]) -> Iterator[bytes]:
    """What `told` makes of the file's JSON; a larger or different file is given as it is."""
    held = bytearray()
    for chunk in chunks:
        held += chunk
        if len(held) > _LARGEST:
            yield bytes(held)
            yield from chunks
            return
    try:
        lines = list(told(json.loads(held)))
    except _OTHERWISE:
        yield bytes(held)
        return
    yield from lines
