"""Signatures are found where reading every line finds them, with numbers, captures and times."""

from __future__ import annotations

import pytest

from stallwatch_rules import signatures
from stallwatch_rules.blockscan import available
from stallwatch_rules.lines import LineReader
from stallwatch_rules.matcher import Matcher
from stallwatch_rules.signatures import SignatureScan

OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
TRACE = "Invalidate trace cache @ step {step}: expected module 7, but got module 3"


pytestmark = pytest.mark.skipif(not available(), reason="hyperscan has no wheel for this platform")


@pytest.fixture
def log() -> bytes:
    lines = []
    for step in range(2000):
        lines.append(f"[2026-05-02 09:{step // 60 % 60:02d}:{step % 60:02d},000] step {step}/9000 loss 1.5")
        if step % 37 == 0:
            lines.append(f"\x1b[31m[rank1]: {TRACE.format(step=step)}\x1b[0m")
        if step % 501 == 0:
            lines.append(f"  1%|#    | {step}/9000 [00:10<10:00,  1.0it/s]\r[rank0]: {OOM}\r")
    lines.append("[2026-05-02 10:00:00,000] 显存 " + OOM)
    return ("\r\n".join(lines)).encode("gbk")


@pytest.mark.parametrize("portion", [1 << 20, 1009])
def test_as_reading_every_line(
    matcher: Matcher, log: bytes, portion: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(signatures, "CELL", 4096)
    scan = SignatureScan(matcher)
    found = [
        signature for at in range(0, len(log), portion) for signature in scan.feed(log[at : at + portion])
    ] + list(scan.finish())

    reader = LineReader("")
    lines = [*reader.feed(log), *reader.finish()]
    expected = [(rule, lines[index].number, captures) for index, rule, captures in matcher.match(lines)]
    assert [(one.rule, one.line, one.captures) for one in found] == expected
    assert scan.lines == log.count(b"\n")
    assert len({one.bucket(60.0) for one in found}) > 20
    assert all(one.time is not None for one in found[1:])
