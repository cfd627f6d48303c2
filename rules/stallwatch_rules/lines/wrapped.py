"""Lines that a terminal or a pager broke at its width: what was pasted from there has them in pieces.

They are put together only where it is sure: no line of the beginning is longer than the width, lines of
different wording have exactly that length, and what follows them goes on in mid-word.
"""

from __future__ import annotations

import re

_WIDTHS = range(60, 301)
_FULL_LINES = 3  # of different wording
_BROKEN_WORDS = 2
# What begins a line, so that it continues none.
_FRESH = re.compile(
    r"\s*(?:$|\[rank\d|\[default\d|Traceback |File \"|\[?20\d\d-\d\d-\d\d|\[?[IWEF]\d{3,4} \d\d:|\{'"
    r"|\[(?:INFO|WARNING|ERROR|DEBUG)\b|INFO |WARNING |ERROR |\d{1,3}%\||[\w.]+(?:Error|Exception|Warning):)"
)
_BOXES = re.compile(r"[│╭╰╮╯┃┏┗━─█▉-▏]")
_ZEROED = str.maketrans("123456789", "0" * 9)
_WORDY = re.compile(r"[\w/.-]")


def wrap_width(head: bytes) -> int | None:
    """At how many characters the lines of a text are broken, seen in its first bytes."""
    if b"\r" in head.replace(b"\r\n", b"\n"):  # a terminal's progress bars were not wrapped by a pager
        return None
    lines = head.decode("utf-8", "replace").splitlines()[:2000]
    width = max(map(len, lines), default=0)
    if width not in _WIDTHS:
        return None
    wordings = set()
    broken = 0
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        if len(line) != width or not _may_go_on(line):
            continue
        wordings.add(line.translate(_ZEROED))
        if _FRESH.match(following):
            broken -= 1
        elif _WORDY.match(line[-1]) and _WORDY.match(following):
            broken += 1
    return width if len(wordings) >= _FULL_LINES and broken >= _BROKEN_WORDS else None


def _may_go_on(line: str) -> bool:
    """Whether a line of full width may be the first part of a longer one: no rule, no box, no bar.

    Nor one that was filled up with blanks: some terminals copy a line as wide as they are.
    """
    return len(set(line)) > 6 and not line.endswith("  ") and _BOXES.search(line) is None


class Joiner:
    """Puts the lines together that were broken at a width."""

    def __init__(self, width: int, longest: int) -> None:
        self._width = width
        self._longest = longest
        self._held = b""
        self._parts = 0
        self._open = False  # the last part was of full width

    def take(self, raw: bytes) -> list[tuple[bytes, int]]:
        """The whole lines that are known now, each with the number of lines that it was."""
        text = raw.decode("utf-8", "replace")
        goes_on = self._open and not _FRESH.match(text) and len(self._held) <= self._longest
        done = [] if goes_on else self.left()
        self._held = self._held + raw if goes_on else raw
        self._parts += 1
        self._open = len(text) == self._width and _may_go_on(text)
        return done if self._open else done + self.left()

    def left(self) -> list[tuple[bytes, int]]:
        """What is still held."""
        held, parts = self._held, self._parts
        self._held, self._parts, self._open = b"", 0, False
        return [(held, parts)] if parts else []
