"""A failure that a line names and that the training survives is no failure of the run."""

from __future__ import annotations

import pytest

from stallwatch_rules.lines.reader import LineReader
from stallwatch_rules.matching.matcher import Matcher
from stallwatch_rules.pages.catalogue import Catalogue
from stallwatch_rules.reading import RunReading

STEPS = [f"step {n}/30 loss {2 / n + 0.1:.3f}" for n in range(1, 31)]
NAMED = "RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB"


@pytest.mark.parametrize(
    ("lines", "verdict"),
    [
        ([*STEPS[:-1], NAMED, STEPS[-1]], "healthy"),  # the run reached its last step
        ([*STEPS[:20], NAMED, STEPS[20]], "failed"),  # it ends in mid-course, and one line may be late
        ([*STEPS[:20], NAMED, *STEPS[20:24]], "healthy"),
        ([*STEPS, NAMED], "failed"),
    ],
)
def test_how_many_steps_must_follow(
    lines: list[str], verdict: str, catalogue: Catalogue, matcher: Matcher
) -> None:
    reading = RunReading(catalogue, matcher)
    reader = LineReader("train.log")
    reading.feed(reader.feed("\n".join(lines).encode() + b"\n"))
    assert reading.diagnose().verdict == verdict
