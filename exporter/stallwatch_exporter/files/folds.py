"""Where the lines of a text were broken that somebody pasted, or that a pager showed."""

from __future__ import annotations

from typing import NamedTuple

from stallwatch_exporter.files.heads import broken_at
from stallwatch_rules.lines.reader import LineReader
from stallwatch_rules.lines.wrapped import as_pasted, broken_lines, likely_fold
from stallwatch_rules.matching.matcher import Matcher
from stallwatch_rules.records import Line

_PASTED = 16 * 1024  # bytes of a text that somebody copied by hand, at most
_HIDDEN = "\N{END OF PROOF}"  # in no pattern
_LOOKED_AT = 32  # lines that may have been broken: the last ones, as a run says at its end why it ended


class Fold(NamedTuple):
    """How the lines of a text were broken."""

    width: int | None = None  #: at how many characters; None: they were not
    spaced: bool = False  #: between words


_WHOLE = Fold()


def fold_of(head: bytes, matcher: Matcher) -> Fold:
    """How a terminal broke the lines of a text, or who pasted it.

    Of a short text, which shows little, it is believed only where a rule finds its words on both sides of a
    break, and nothing without them, and where no rule is lost by it.
    """
    width = broken_at(head)
    text = as_pasted(head)
    likely = likely_fold(text) if len(text) < _PASTED else None
    if likely is not None:
        known = _rules_in(text, matcher, Fold(width))
        for spaced in (True, False) if width is None else (True,):
            broken = broken_lines(text, likely, spaced)[-_LOOKED_AT:]
            gained = any(_told_by_both(line, matcher) - known for line in broken)
            if gained and known <= _rules_in(text, matcher, Fold(likely, spaced)):
                return Fold(likely, spaced)
    return Fold(width)


def _told_by_both(pieces: list[bytes], matcher: Matcher) -> set[str]:
    """The rules that need more than one of the pieces: no pattern of theirs is found in one alone.

    A pattern that is found there and excluded counts, too: lines put together wrongly may spoil the word by
    which it is excluded.
    """
    found = _rules_in(b"".join(pieces), matcher)
    for seen in range(len(pieces)) if found else ():
        shown = (piece if at == seen else _hidden(piece) for at, piece in enumerate(pieces))
        found -= matcher.matched(_read(b"".join(shown)))
    return found


def _hidden(piece: bytes) -> bytes:
    """As long, and apart from the next piece as before."""
    words = piece.rstrip(b" ")
    return (_HIDDEN * len(words.decode("utf-8", "replace"))).encode() + piece[len(words) :]


def _rules_in(text: bytes, matcher: Matcher, fold: Fold = _WHOLE) -> set[str]:
    return {rule for _, rule, _ in matcher.match(_read(text, fold))}


def _read(text: bytes, fold: Fold = _WHOLE) -> list[Line]:
    reader = LineReader("", None, *fold)
    return reader.feed(text) + reader.finish()
