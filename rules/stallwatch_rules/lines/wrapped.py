"""Join lines that a terminal or a pager broke at its width, and shorten lines that are too long to be kept.

Broken lines are joined only if the break is certain: no line of the beginning is longer than the width, lines
of different templates have exactly that length, and the text after them continues in mid-word. A short text
that was broken between words gives less evidence: `likely_fold` returns the width at which that may have
happened, and the caller must have another reason to believe it.
Of a line of a megabyte (a dumped array, a bar drawn endlessly, a log whose line ends were lost), the
beginning and the end are kept: the line may still end in an important error.
"""

from __future__ import annotations

import codecs
import itertools

from stallwatch_rules.text.encodings import decode_cut, decode_rest
from stallwatch_rules.text.lazy import lazy
from stallwatch_rules.text.redact import is_key_line

MAX_LINE = 64 * 1024  #: maximum number of bytes kept of a line
TAIL = 16 * 1024  #: bytes kept from the end of a longer line
HEAD = MAX_LINE - TAIL
CUT = "\n"  #: marks omitted text in a line; occurs in no line
GOES_ON = "…"  #: put before the end of a cut line, which is no start of a line


def append_bounded(held: bytearray, data: bytes) -> None:
    """Add the part of ``data`` that is to be kept to an unfinished line.

    One byte more than ``MAX_LINE`` shows that text was omitted.
    """
    if len(held) + len(data) <= MAX_LINE + 1:
        held += data
        return
    if len(data) > MAX_LINE + 1:
        held += data[: max(0, HEAD - len(held))]
        data = data[-TAIL - 1 :]
    held += data
    del held[HEAD : len(held) - TAIL - 1]


def decoded(raw: bytes) -> str:
    """Return the text of a line longer than ``MAX_LINE``, with ``CUT`` between its beginning and its end."""
    return decode_cut(raw[:HEAD]) + CUT + decode_rest(raw[-TAIL:])


def joined(begun: str, text: str) -> str:
    """Return both parts of a line as one line, cut if it is too long."""
    whole = begun + text
    if len(whole) <= MAX_LINE:
        return whole
    whole = whole.replace(CUT, "")
    return whole[:HEAD] + CUT + whole[-TAIL:]


_WIDTHS = range(60, 301)
_FULL_LINES = 3  # minimum number of full lines of different templates
_BROKEN_WORDS = 2
# Text that starts a line, so that it continues no line.
_FRESH = lazy(
    r"\s*(?:$|\[rank\d|\[default\d|Traceback |File \"|\[?20\d\d-\d\d-\d\d|\[?[IWEF]\d{3,4} \d\d:|\{'"
    r"|\[(?:INFO|WARNING|ERROR|DEBUG)\b|INFO |WARNING |ERROR |\d{1,3}%\||[\w.]+(?:Error|Exception|Warning):"
    r"|[\w.-]{1,255}:\d+:\d+ \[\d+\] )"  # NCCL's host, process, thread and device
)
_BOXES = lazy(r"[│╭╰╮╯┃┏┗━─█▉-▏]")
_NUMBER = lazy(r" *\d+")  # a number with the blanks that fill its column
_WORDY = lazy(r"[\w/.-]")
_FIRST_WORD = lazy(r"\S{1,300}")
_LONG_WORD = lazy(r"\S{24,}\Z")  # a path, a symbol: broken at the end of the line, for lack of blanks
# Text with which a program starts a new line: a mark, a label, a count of its progress.
_LABELLED = lazy(
    r"[(\[{<>#|*]|[-+•]\s|\d{1,2}[.)]\s|\s{2}|\S+[:=|]\s"
    r"|(?i:(?:global_?)?(?:step|iter\w*|epoch|batch|loss|train\w*|eval\w*)\b\W{0,4}\d)"
)


def normalized_text(head: bytes) -> bytes:
    """Return a text in UTF-8 with line feeds, from text in any encoding and with any line ends."""
    if head[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        head = head.decode("utf-16", "replace").encode("utf-8", "replace")
    return head.removeprefix(codecs.BOM_UTF8).replace(b"\0", b"").replace(b"\r\n", b"\n")


def wrap_width(head: bytes) -> int | None:
    """Return the width in characters at which the lines of a text are broken, from its first bytes."""
    lines = _lines(head)[:2000]
    width = max(map(len, lines), default=0)
    if width not in _WIDTHS:
        return None
    forms = set()
    broken = 0
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        if len(line) != width or not _may_go_on(line):
            continue
        forms.add(_NUMBER.sub("0", line))
        if _FRESH.match(following):
            broken -= 1
        elif _WORDY.match(line[-1]) and _WORDY.match(following):
            broken += 1
    return width if len(forms) >= _FULL_LINES and broken >= _BROKEN_WORDS else None


def likely_fold(head: bytes) -> int | None:
    """Return the width at which the lines of a short text may have been broken between words.

    Each break is before a word that did not fit, and no line is longer than the width.
    """
    lines = _lines(head)
    width = max(map(len, lines), default=0)
    if width not in _WIDTHS:
        return None
    return width if any(_folded(*pair, width) for pair in itertools.pairwise(lines)) else None


def _lines(head: bytes) -> list[str]:
    """Return the lines of a text; none if it has a terminal's progress bars, which no pager wraps."""
    text = normalized_text(head)
    return [] if b"\r" in text else text.decode("utf-8", "replace").split("\n")


def _blank_between(line: str, width: int, spaced: bool) -> str:
    """Return the text between a piece and the next piece: a blank if the line was broken between words."""
    return " " if spaced and not (len(line) == width and _LONG_WORD.search(line)) else ""


def _folded(line: str, following: str, width: int) -> bool:
    """Return whether a line may be the rest of the line before, whose end had no room for its first word."""
    word = _FIRST_WORD.match(following)
    if word is None or len(line) + 1 + len(word[0]) <= width or not _may_go_on(line):
        return False
    if _FRESH.match(following):
        return False
    return not _blank_between(line, width, True) or not _LABELLED.match(following)


def _may_go_on(line: str) -> bool:
    """Return whether a line of full width may be the first part of a longer line: no rule, box or bar.

    Lines that were padded with blanks are excluded: some terminals copy lines at full width. Lines of a
    private key all have the same width, and are masked one by one.
    """
    if len(set(line)) <= 6 or line.endswith("  ") or is_key_line(line):
        return False
    return _BOXES.search(line) is None


class Joiner:
    """Joiner of the lines that were broken at a width; ``spaced``: between words.

    A line is the list of its pieces; the blank at which it was broken ends a piece.
    """

    def __init__(self, width: int, spaced: bool = False) -> None:
        self._width = width
        self._spaced = spaced
        self._last = ""
        self._pieces: list[bytes] = []

    def take(self, raw: bytes) -> list[list[bytes]]:
        """Return the whole lines known so far; ``raw`` may end with the carriage return of its line end."""
        raw = raw.removesuffix(b"\r")
        text = raw.decode("utf-8", "replace")
        done = []
        if self._pieces and self._continues(text):
            self._pieces[-1] += _blank_between(self._last, self._width, self._spaced).encode()
        else:
            done = self.left()
        self._pieces.append(raw)
        self._last = text
        return done

    def _continues(self, text: str) -> bool:
        """Return whether this text may continue the last piece."""
        if sum(map(len, self._pieces)) > MAX_LINE:
            return False
        if self._spaced:
            return _folded(self._last, text, self._width)
        return len(self._last) == self._width and _may_go_on(self._last) and not _FRESH.match(text)

    def left(self) -> list[list[bytes]]:
        """Return the held line, if any."""
        held, self._pieces = self._pieces, []
        return [held] if held else []


def broken_lines(text: bytes, width: int, spaced: bool) -> list[list[bytes]]:
    """Return the broken lines of a text that a ``Joiner`` joins, each as the list of its pieces."""
    joiner = Joiner(width, spaced)
    taken = itertools.chain.from_iterable(map(joiner.take, normalized_text(text).split(b"\n")))
    return [line for line in [*taken, *joiner.left()] if len(line) > 1]
