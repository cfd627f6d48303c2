"""Lines that a terminal or a pager broke at its width: what was pasted from there has them in pieces.

They are put together only where it is sure: no line of the beginning is longer than the width, lines of
different wording have exactly that length, and what follows them goes on in mid-word.

A short text that was broken between words shows less: `likely_fold` is where that may have happened, and
whoever asks must have another reason to believe it.
"""

from __future__ import annotations

import itertools
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
_FIRST_WORD = re.compile(r"\S{1,300}")
_LONG_WORD = re.compile(r"\S{24,}\Z")  # a path, a symbol: broken where the line is full, for want of blanks
# What a program begins a line of its own with: a mark, a label, a count of its progress.
_LABELLED = re.compile(
    r"[(\[{<>#|*]|[-+•]\s|\d{1,2}[.)]\s|\s{2}|\S+[:=|]\s"
    r"|(?i:(?:global_?)?(?:step|iter\w*|epoch|batch|loss|train\w*|eval\w*)\b\W{0,4}\d)"
)


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


def likely_fold(head: bytes) -> int | None:
    """The width at which the lines of a short text may have been broken between words.

    Each break is before a word that had no place left, and no line is longer than the width.
    """
    if b"\r" in head.replace(b"\r\n", b"\n"):
        return None
    lines = head.decode("utf-8", "replace").splitlines()
    width = max(map(len, lines), default=0)
    if width not in _WIDTHS:
        return None
    return width if any(_folded(*pair, width) for pair in itertools.pairwise(lines)) else None


def pieces(head: bytes, width: int, spaced: bool) -> list[list[str]]:
    """The lines that `Joiner` would put together, each as its pieces; not those that are whole."""
    groups: list[list[str]] = [[]]
    for line in head.decode("utf-8", "replace").splitlines():
        if groups[-1] and _goes_on(groups[-1][-1], line, width, spaced):
            groups[-1].append(line)
        else:
            groups.append([line])
    return [group for group in groups if len(group) > 1]


def blank_between(line: str, width: int, spaced: bool) -> str:
    """What stood between a piece and the next one."""
    return " " if spaced and not (len(line) == width and _LONG_WORD.search(line)) else ""


def _goes_on(line: str, following: str, width: int, spaced: bool) -> bool:
    if spaced:
        return _folded(line, following, width)
    return len(line) == width and _may_go_on(line) and not _FRESH.match(following)


def _folded(line: str, following: str, width: int) -> bool:
    """Whether the second may be the rest of the first, broken off because its first word did not fit."""
    word = _FIRST_WORD.match(following)
    if word is None or len(line) + 1 + len(word[0]) <= width or not _may_go_on(line):
        return False
    if _FRESH.match(following):
        return False
    return not blank_between(line, width, True) or not _LABELLED.match(following)


def _may_go_on(line: str) -> bool:
    """Whether a line of full width may be the first part of a longer one: no rule, no box, no bar.

    Nor one that was filled up with blanks: some terminals copy a line as wide as they are.
    """
    return len(set(line)) > 6 and not line.endswith("  ") and _BOXES.search(line) is None


class Joiner:
    """Puts the lines together that were broken at a width; ``spaced``: between words."""

    def __init__(self, width: int, longest: int, spaced: bool = False) -> None:
        self._width = width
        self._longest = longest
        self._spaced = spaced
        self._last = ""
        self._held = b""
        self._parts = 0
        self._open = False  # the last part was of full width

    def take(self, raw: bytes) -> list[tuple[bytes, int]]:
        """The whole lines that are known now, each with the number of lines that it was."""
        text = raw.decode("utf-8", "replace")
        if self._spaced:
            return self._take_spaced(raw, text)
        goes_on = self._open and not _FRESH.match(text) and len(self._held) <= self._longest
        done = [] if goes_on else self.left()
        self._held = self._held + raw if goes_on else raw
        self._parts += 1
        self._open = len(text) == self._width and _may_go_on(text)
        return done if self._open else done + self.left()

    def _take_spaced(self, raw: bytes, text: str) -> list[tuple[bytes, int]]:
        goes_on = bool(self._parts) and len(self._held) <= self._longest
        goes_on = goes_on and _folded(self._last, text, self._width)
        done = [] if goes_on else self.left()
        between = blank_between(self._last, self._width, True).encode()
        self._held = self._held + between + raw if goes_on else raw
        self._parts += 1
        self._last = text
        return done

    def left(self) -> list[tuple[bytes, int]]:
        """What is still held."""
        held, parts = self._held, self._parts
        self._held, self._parts, self._open = b"", 0, False
        return [(held, parts)] if parts else []
