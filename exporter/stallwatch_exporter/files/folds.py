"""Where the lines of a text were broken that somebody pasted, or that a pager showed."""

from __future__ import annotations

from typing import NamedTuple

from stallwatch_exporter.files.heads import broken_at
from stallwatch_rules.lines.reader import LineReader
from stallwatch_rules.lines.wrapped import blank_between, likely_fold, pieces
from stallwatch_rules.matching.matcher import Matcher

_PASTED = 16 * 1024  # bytes of a text that somebody copied by hand, at most
_HIDDEN = "\N{END OF PROOF}"  # in no pattern
_LOOKED_AT = 32  # lines that may have been broken: the last ones, as a run says at its end why it ended


class Fold(NamedTuple):
    """How the lines of a text were broken."""

    width: int | None = None  #: at how many characters; None: they were not
    spaced: bool = False  #: between words


def fold_of(head: bytes, matcher: Matcher) -> Fold:
    """How a terminal broke the lines of a text, or who pasted it.

    Of a short text, which shows little, it is believed only where a rule finds its words on both sides of a
    break, and nothing without them.
    """
    width = broken_at(head)
    likely = likely_fold(head) if len(head) < _PASTED else None
    if likely is not None:
        known = _rules_in(head, matcher)
        for spaced in (True, False) if width is None else (True,):
            broken = pieces(head, likely, spaced)[-_LOOKED_AT:]
            if any(_told_by_both(group, matcher, Fold(likely, spaced)) - known for group in broken):
                return Fold(likely, spaced)
    return Fold(width)


def _told_by_both(group: list[str], matcher: Matcher, fold: Fold) -> set[str]:
    """The rules that need more than one of the pieces: they do not fire while the others are hidden."""
    ends = [blank_between(part, fold.width or 0, fold.spaced) for part in group[:-1]] + [""]
    found = _rules_in("".join(map("".join, zip(group, ends, strict=True))).encode(), matcher)
    for seen in range(len(group)) if found else ():
        parts = (part if at == seen else _HIDDEN * len(part) for at, part in enumerate(group))
        found -= _rules_in("".join(map("".join, zip(parts, ends, strict=True))).encode(), matcher)
    return found


def _rules_in(text: bytes, matcher: Matcher) -> set[str]:
    reader = LineReader("")
    return {rule for _, rule, _ in matcher.match(reader.feed(text) + reader.finish())}
