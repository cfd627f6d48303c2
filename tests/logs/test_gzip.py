"""gzip is read with isal if it has a wheel, otherwise with zlib: the same bytes, complete or truncated."""

from __future__ import annotations

import gzip
import io
import random
import zlib
from typing import Any

import pytest

from stallwatch_logs import decompress
from stallwatch_logs.inputs import InputError, Limits, Meter

LOG = b"".join(b"step %d loss %d\n" % (n, random.Random(n).getrandbits(40)) for n in range(20_000))


def read(packed: bytes) -> tuple[bytes, bool]:
    """Return the unpacked bytes, and True if the file is reported as broken."""
    given = b""
    try:
        for portion in decompress.expanded(io.BytesIO(packed), "gzip", Meter(Limits())):
            given += portion
    except InputError:
        return given, True
    return given, False


@pytest.mark.parametrize("isal", [True, False])
def test_gzip_is_read_identically_without_isal(monkeypatch: pytest.MonkeyPatch, isal: bool) -> None:
    if isal:
        pytest.importorskip("isal")
    else:
        monkeypatch.setattr(decompress, "_isal_zlib", lambda: None)
    packed = gzip.compress(LOG[:50_000]) + gzip.compress(LOG[50_000:])
    assert read(packed) == (LOG, False)
    begun, broken = read(packed[: len(packed) // 2])
    assert broken or begun != LOG
    assert LOG.startswith(begun) and len(begun) > 50_000


class Counting:
    """Decompressor that counts its calls, and those of its copies."""

    def __init__(self, inner: Any, calls: list[int]) -> None:
        self._inner, self._calls = inner, calls

    def copy(self) -> Counting:
        return Counting(self._inner.copy(), self._calls)

    def decompress(self, data: bytes) -> bytes:
        self._calls.append(len(data))
        return bytes(self._inner.decompress(data))


@pytest.mark.parametrize("size", [0, 1, 999, 30_000, 100_000])
def test_bytes_before_a_break_are_found_in_few_calls(size: int) -> None:
    """The result equals byte-wise reading, but a broken file must not take many times as long."""
    packer = zlib.compressobj(wbits=31)
    packed = packer.compress(LOG[:size]) + packer.flush(zlib.Z_FULL_FLUSH) + b"\xff" * 5000
    assert len(packed) <= decompress._PIECE
    whole, expected = zlib.decompressobj(31), b""
    with pytest.raises(zlib.error):
        for byte in packed:
            expected += whole.decompress(bytes((byte,)))
    calls: list[int] = []
    before = decompress._up_to_the_break(Counting(zlib.decompressobj(31), calls), packed)
    assert before == expected == LOG[:size]
    assert len(calls) <= 17 and sum(calls) <= 2 * decompress._PIECE
