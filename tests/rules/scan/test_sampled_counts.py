"""The count of a rule's matches stays exact, however its lines mix with other lines."""

from __future__ import annotations

import random

import pytest

from stallwatch_rules.lines.reader import LineReader
from stallwatch_rules.locale import rendered
from stallwatch_rules.matching.matcher import Matcher
from stallwatch_rules.pages.catalogue import load_catalogue
from stallwatch_rules.reading import RunReading
from stallwatch_rules.records import Finding
from stallwatch_rules.scan.patterns import scan_engine
from stallwatch_rules.scan.sources import SourceReading
from stallwatch_rules.scan.state import ScanSizes

TRACE = "Invalidate trace cache @ step {n}: expected module 19, but got module 11"
OOM = "RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB"
SIZES = ScanSizes(chunk=8192, head=1024, head_segments=8, tail=4096, dense=2, rule_lines=5, probe=512)


def findings_of(lines: list[str]) -> dict[str, Finding]:
    """The matches of each rule in the sampled scan of these lines."""
    catalogue = load_catalogue()
    matcher = Matcher(catalogue)
    engine = scan_engine(matcher)
    if engine is None:
        pytest.skip("hyperscan or numpy is missing on this platform")
    reading = RunReading(catalogue, matcher)
    source = SourceReading(reading, LineReader("train.log"), lambda: engine, SIZES)
    source.feed(("\n".join(lines) + "\n").encode())
    source.finish()
    return {finding.rule: finding for finding in rendered(reading.diagnose()).findings}


@pytest.mark.parametrize("prefix", ["", "[rank{rank}]: ", "[default{rank}]:"])
def test_dense_matches_of_two_rules_are_counted_separately(prefix: str) -> None:
    rng = random.Random(7)
    lines = []
    for n in range(6000):
        kind = rng.random()
        text = (
            TRACE.format(n=n)
            if kind < 0.6
            else OOM
            if kind < 0.65
            else f"step {n}/9000 loss {2 / (n + 1):.4f}"
        )
        lines.append(prefix.format(rank=n % 3) + text)
    found = findings_of(lines)
    trace = found["zero3-trace-cache-invalidated"]
    assert trace.count == sum("Invalidate" in line for line in lines)
    assert found["cuda-oom"].count == sum("out of memory" in line for line in lines)
    assert trace.ranks == ([0, 1, 2] if prefix else [])


@pytest.mark.parametrize("quote", ["'", "’"])
def test_lines_with_typographic_quotes_are_counted(quote: str) -> None:
    text = f"AttributeError: {quote}NoneType{quote} object has no attribute {quote}next_functions{quote}"
    lines = [text if n % 3 == 0 else f"step {n}/9000 loss {2 / (n + 1):.4f}" for n in range(3000)]
    assert findings_of(lines)["zero3-autograd-next-functions-none"].count == 1000
