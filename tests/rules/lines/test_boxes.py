"""Tracebacks in rich's boxes, at any place and with any content."""

from __future__ import annotations

import pytest

from stallwatch_rules.locale import rendered
from stallwatch_rules.matching.matcher import lines_of
from stallwatch_rules.pages.catalogue import Catalogue
from stallwatch_rules.reading import RunReading

STEPS = "step 1/60 loss 2.1\nstep 2/60 loss 2.0\n"
OOM = "OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
INSIDE = (
    "/app/train.py:33 in main",
    "   30 │   x = 1",
    "❱  33 │   raise RuntimeError('NCCL error')",
    "╭──── locals ────╮",
    "│ msg = 'RuntimeError: CUDA error: device-side assert triggered' │",
    "╰────────────────╯",
)


def box(*inside: str, title: str = "Traceback (most recent call last)") -> list[str]:
    """Return a box as rich draws it."""
    return [f"╭──── {title} ────╮", *(f"│ {line} │" for line in inside), "╰────────────────╯"]


def indented(lines: list[str]) -> list[str]:
    """Return the lines as rich's logging handler indents them: after its columns of time and level."""
    return [("[10:15:02] ERROR    " if number == 0 else " " * 20) + line for number, line in enumerate(lines)]


@pytest.mark.parametrize(
    "lines",
    [
        [*box(*INSIDE), OOM],
        indented([*box(*INSIDE), OOM]),
        [f"[rank1]: {line}" for line in [*box(*INSIDE), OOM]],
        box(*INSIDE, OOM),
        [
            *box(*INSIDE),
            "KeyError: 'x'",
            "",
            "The above exception was the direct cause of the following exception:",
            *box(*INSIDE),
            OOM,
        ],
    ],
)
def test_boxed_exception_is_found(catalogue: Catalogue, lines: list[str]) -> None:
    reading = RunReading(catalogue)
    reading.feed(lines_of(STEPS + "\n".join(lines) + "\n"))
    found = rendered(reading.diagnose())
    assert found.primary is not None and found.primary.rule == "cuda-oom"
    assert [finding.rule for finding in found.findings] == ["cuda-oom"] and not found.unknown
