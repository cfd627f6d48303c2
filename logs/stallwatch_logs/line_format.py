"""Detect how the lines of a text were wrapped by a terminal or prefixed."""

from __future__ import annotations

from typing import NamedTuple

from stallwatch_logs.portions import HEAD, broken_at
from stallwatch_rules.lines.line_prefix import LinePrefix, certain_prefix, likely_prefixes
from stallwatch_rules.lines.reader import LineReader
from stallwatch_rules.lines.wrapped import broken_lines, likely_fold, normalized_text
from stallwatch_rules.matching.matcher import Matcher
from stallwatch_rules.records import Line
from stallwatch_rules.samples import extract
from stallwatch_rules.text.lazy import lazy

_PASTED = 16 * 1024  # bytes of the largest text that was copied by hand
_SHOWN = 16 * 1024  # number of bytes that show whether a text's numbers follow a line prefix
_HIDDEN = "\N{END OF PROOF}"  # a character that no pattern matches
_DIGITS = lazy(rb"\d+")
_ALIKE = 40  # number of lines at the beginning of ranks' logs that identify logs with the same prefix
_MOST_ALIKE = 100
_LOOKED_AT = 32  # number of last lines that may have been broken, because a run prints there why it ended


class Fold(NamedTuple):
    """How the lines of a text were broken, and the prefix before them."""

    width: int | None = None  #: width in characters; None: not broken
    spaced: bool = False  #: broken between words
    lead: LinePrefix | None = None  #: prefix of each line


_WHOLE = Fold()


def fold_of(head: bytes, matcher: Matcher) -> Fold:
    """Return how a terminal broke, a person pasted, or a viewer prefixed the lines of a text.

    A short text gives little evidence. In it, a break counts only if a rule matches words on both sides of
    the break, and not without them; a prefix that numbers no list counts only if rules match behind it; and
    no match of another rule may be lost.
    """
    lead = prefix_of(head)
    width = broken_at(head) if lead is None else None
    text = normalized_text(head) if len(head) < HEAD else b""
    if not text or len(text) >= _PASTED:
        return Fold(width, False, lead)
    likely, leads = likely_fold(text) if lead is None else None, likely_prefixes(text)
    if likely is None and not leads:
        return Fold(width, False, lead)
    known = _rules_in(text, matcher, Fold(width, False, lead))
    if likely is not None:
        for spaced in (True, False) if width is None else (True,):
            broken = broken_lines(text, likely, spaced)[-_LOOKED_AT:]
            gained = any(_rules_across_pieces(line, matcher) - known for line in broken)
            if gained and known <= _rules_in(text, matcher, Fold(likely, spaced)):
                return Fold(likely, spaced)
    for other in leads:
        if not other.counts and known < _rules_in(text, matcher, Fold(width, False, other)):
            return Fold(width, False, other)
    return Fold(width, False, lead)


def prefix_of(head: bytes) -> LinePrefix | None:
    """Return the line prefix of a text, if it is certain, or if numbers are found only behind it.

    Logs whose beginnings differ only in numbers, such as those of a run's ranks, share the prefix.
    """
    beginning = _DIGITS.sub(b"0", b"\n".join(head[:_SHOWN].split(b"\n", _ALIKE)[:_ALIKE]))
    if beginning not in _leads:
        if len(_leads) >= _MOST_ALIKE:
            _leads.clear()
        _leads[beginning] = _prefix_of(head)
    return _leads[beginning]


_leads: dict[bytes, LinePrefix | None] = {}


def _prefix_of(head: bytes) -> LinePrefix | None:
    lead = certain_prefix(head)
    if lead is not None:
        return lead
    text = normalized_text(head[:_SHOWN])
    leads = likely_prefixes(text)
    known = _samples_in(text, None) if leads else 0
    return next((lead for lead in leads if _samples_in(text, lead) > known + known // 2), None)


def _samples_in(text: bytes, lead: LinePrefix | None) -> int:
    """Return the number of samples, without those of progress bars, which have a name before them."""
    samples = map(extract, _read(text, Fold(lead=lead)))
    return sum(sample is not None and not sample.from_bar for sample in samples)


def _rules_across_pieces(pieces: list[bytes], matcher: Matcher) -> set[str]:
    """Return the rules that match the joined pieces, but none of the pieces alone.

    A pattern that matches one piece but is excluded counts as a match, too: wrongly joined lines may destroy
    the word that excludes it.
    """
    found = _rules_in(b"".join(pieces), matcher)
    for seen in range(len(pieces)) if found else ():
        shown = (piece if at == seen else _hidden(piece) for at, piece in enumerate(pieces))
        found -= matcher.matched(_read(b"".join(shown)))
    return found


def _hidden(piece: bytes) -> bytes:
    """Return placeholder text of the same length, with the same gap to the next piece."""
    words = piece.rstrip(b" ")
    return (_HIDDEN * len(words.decode("utf-8", "replace"))).encode() + piece[len(words) :]


def _rules_in(text: bytes, matcher: Matcher, fold: Fold = _WHOLE) -> set[str]:
    return {rule for _, rule, _ in matcher.match(_read(text, fold))}


def _read(text: bytes, fold: Fold = _WHOLE) -> list[Line]:
    reader = LineReader("", None, *fold)
    return reader.feed(text) + reader.finish()
