"""gzip is read with isal where it has a wheel, else with zlib: the same bytes, whole or broken off."""

from __future__ import annotations

import gzip
import io
import random

import pytest

from stallwatch_logs import decompress
from stallwatch_logs.inputs import InputError, Limits, Meter

LOG = b"".join(b"step %d loss %d\n" % (n, random.Random(n).getrandbits(40)) for n in range(20_000))


def read(packed: bytes) -> tuple[bytes, bool]:
    """What is given, and whether it is told to be broken."""
    given = b""
    try:
        for portion in decompress.expanded(io.BytesIO(packed), "gzip", Meter(Limits())):
            given += portion
    except InputError:
        return given, True
    return given, False


@pytest.mark.parametrize("isal", [True, False])
def test_without_isal_the_same_is_read(monkeypatch: pytest.MonkeyPatch, isal: bool) -> None:
    if isal:
        pytest.importorskip("isal")
    else:
        monkeypatch.setattr(decompress, "_isal_zlib", lambda: None)
    packed = gzip.compress(LOG[:50_000]) + gzip.compress(LOG[50_000:])
    assert read(packed) == (LOG, False)
    begun, broken = read(packed[: len(packed) // 2])
    assert broken or begun != LOG
    assert LOG.startswith(begun) and len(begun) > 50_000
