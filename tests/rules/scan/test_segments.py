"""The boundaries of a block's segments, found by reading few of its slices."""

from __future__ import annotations

import random
import re
from bisect import bisect_left
from itertools import accumulate

import pytest

from stallwatch_rules.scan import segments as module
from stallwatch_rules.scan.segments import Segments


def block(ends: str, size: int) -> bytes:
    """Lines of many lengths, so that the block has slices with many ends, with few, and with none."""
    rnd, parts, length = random.Random(3), [], 0
    while length < size:
        parts.append(b"x" * rnd.choice((0, 1, 30, 90, 40_000)) + rnd.choice(ends).encode())
        length += len(parts[-1])
    return b"".join(parts)


@pytest.mark.parametrize("pays", [0, 1 << 30], ids=["numpy counts", "Python counts"])
@pytest.mark.parametrize("ends", ["\n", "\n\r", "\n\n\n\r"])
@pytest.mark.parametrize("rest", [b"", b"unfinished"])
def test_segments_equal_those_of_a_complete_search(
    ends: str, rest: bytes, pays: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_PAYS", pays)
    data = block(ends, 400_000) + rest
    found = re.findall(rb"[^\r\n]*[\r\n]|[^\r\n]+\Z", data)
    starts = list(accumulate(map(len, found), initial=0))
    segments = Segments(data)
    assert segments.count == len(found)
    every = range(0, len(found), 7)
    assert [segments.text(n) for n in every] == [found[n].rstrip(b"\r\n") for n in every]
    assert [segments.start(n) for n in every] == [starts[n] for n in every]
    for behind in every[1:]:
        first = behind // 2
        assert segments.raw(first, behind) == data[starts[first] : starts[behind]]
        assert segments.line_ends(first, behind) == data.count(b"\n", starts[first], starts[behind])
    assert segments.line_ends(0, segments.count) == data.count(b"\n")
    offsets = [*range(1, len(data), 97), len(data)]
    wanted = [bisect_left(starts, offset) - 1 for offset in offsets]
    assert segments.at(offsets) == wanted
    assert segments.at(offsets[::-1]) == wanted[::-1]
    assert segments.at([0, 0]) == [0, 0]
