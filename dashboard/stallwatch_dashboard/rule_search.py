"""Search the rule catalogue by words or by a message, try patterns on lines, and draft rule pages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from stallwatch_rules.authoring.drafting import Proposal, propose
from stallwatch_rules.matching.matcher import Matcher, lines_of
from stallwatch_rules.pages.catalogue import Catalogue
from stallwatch_rules.pages.page import RulePage
from stallwatch_rules.pages.patterns import Fault, compile_re2, pattern_fault
from stallwatch_rules.reading import RunReading
from stallwatch_rules.text.redact import redact, redact_part

MOST_HITS = 200
_NOWHERE = 9


@dataclass(frozen=True)
class Hit:
    number: int  #: line number, counted from 1
    line: str  #: text without secrets
    captures: Mapping[str, str]


@dataclass(frozen=True)
class Trial:
    fault: Fault | None  #: the reason why the catalogue would reject the pattern
    hits: Sequence[Hit] = ()
    lines: int = 0  #: number of tested lines


def families(pages: Iterable[RulePage]) -> list[str]:
    return sorted({page.family for page in pages})


def search(catalogue: Catalogue, matcher: Matcher, query: str, chosen: Sequence[str] = ()) -> list[RulePage]:
    """Return the pages of the chosen families (default: all) that contain every word, best matches first.

    If the query is a pasted message, the result also contains the rules that match the message, even if their
    pages do not contain its words.
    """
    pages = [page for page in catalogue.pages.values() if not chosen or page.family in chosen]
    if not query.strip():
        return sorted(pages, key=lambda page: (page.family, page.id))
    fired = {rule for _, rule, _ in matcher.match_text(query)}
    words = query.casefold().split()
    ranked = [(0 if page.id in fired else _rank(page, words), page.id, page) for page in pages]
    return [page for rank, _, page in sorted(ranked) if rank < _NOWHERE]


def _rank(page: RulePage, words: Sequence[str]) -> int:
    """Return 1 if the ID, titles, and family contain all words, 2 if the page does so, or else `_NOWHERE`."""
    head = f"{page.id} {page.title} {page.title_zh} {page.family}".casefold()
    if all(word in head for word in words):
        return 1
    text = page.sections
    body = (text.what, text.why, text.harmless, text.zh_what, text.zh_why, *text.fixes, *text.zh_fixes)
    whole = "\n".join((head, *body, *page.patterns, *page.fires)).casefold()
    return 2 if all(word in whole for word in words) else _NOWHERE


def try_pattern(pattern: str, text: str) -> Trial:
    """Return the lines of `text` that the pattern matches. As in a diagnosis, lines are tested separately."""
    if fault := pattern_fault(pattern):
        return Trial(fault)
    expression, lines = compile_re2(pattern, encoded=False), lines_of(text)
    hits: list[Hit] = []
    for line in lines:
        if (found := expression.search(line.text)) is not None and len(hits) < MOST_HITS:
            clean, captured = redact(line.text), found.groupdict().items()
            values = {name: redact_part(value, clean) for name, value in captured if value is not None}
            hits.append(Hit(line.number, clean, values))
    return Trial(None, hits, len(lines))


def draft_of(text: str, catalogue: Catalogue, *, since: str) -> Proposal:
    """Draft a rule page for the failure in `text`.

    Raise ``DraftError`` if a rule already matches, or if the text contains no failure.
    """
    reading = RunReading(catalogue)
    reading.feed(lines_of(text, "pasted"))
    return propose(reading, since=since)
