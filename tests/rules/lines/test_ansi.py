"""Terminal codes are removed from lines and from raw chunks in the same way."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stallwatch_rules.lines.reader import LineReader
from stallwatch_rules.scan.segments import view_of

PIECES = ["\x1b[31m", "\x1b[0;1;38;5;9m", "\x1b[2K", "\x1b]0;title\x07", "\x1b]8;;http://x\x1b\\", "\x1b(B"]
BROKEN = ["\x1b", "\x1b[", "\x1b]unended", "[31m"]


def both(text: str) -> tuple[list[str], list[str]]:
    reader = LineReader("run.log")
    lines = [*reader.feed(text.encode() + b"\n"), *reader.finish()]
    seen = [line for line in view_of(text.encode()).decode().splitlines() if line and not line.isspace()]
    return [line.text for line in lines], seen


@pytest.mark.parametrize("code", PIECES)
def test_terminal_codes_are_removed(code: str) -> None:
    assert both(f"loss {code}0.5{code}") == (["loss 0.5"], ["loss 0.5"])


@settings(deadline=None)
@given(parts=st.lists(st.sampled_from([*PIECES, *BROKEN, "loss", " 0.5", "显存", "\n"]), max_size=12))
def test_lines_and_chunks_agree(parts: list[str]) -> None:
    lines, cells = both("step" + "".join(parts))
    assert lines == cells
