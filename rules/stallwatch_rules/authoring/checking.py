"""Check the samples on rule pages, for ``stallwatch rules check`` and the tests."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

import msgspec

from stallwatch_rules.matching.matcher import Matcher, lines_of
from stallwatch_rules.pages.catalogue import Catalogue, load_catalogue
from stallwatch_rules.pages.page import LONGEST, RulePage
from stallwatch_rules.pages.page_body import PageError
from stallwatch_rules.reading import RunReading


def check_page(page: RulePage, catalogue: Catalogue | None = None) -> list[PageError]:
    """Check a page and return a problem for each sample whose result contradicts its label.

    The label shows whether the rule must fire on the sample. If a rule has no patterns, each of its samples
    is diagnosed as a whole run, together with the other rules of `catalogue`. By default, `catalogue`
    is the packaged catalogue.
    """
    if _needs_run(page):
        others = (load_catalogue() if catalogue is None else catalogue).pages.values()
        catalogue = Catalogue.of([*(other for other in others if other.id != page.id), page])
    else:
        catalogue = Catalogue.of([_as_active(page)])
    return list(_check(page, catalogue, Matcher(catalogue)))


def check_catalogue(catalogue: Catalogue) -> list[PageError]:
    """Return the problems found while loading the pages, then the problems with each page's samples."""
    awake = Catalogue.of(_as_active(page) for page in catalogue.pages.values())
    matcher = Matcher(awake)
    problems = list(catalogue.problems)
    for page in catalogue.pages.values():
        problems += _check(page, awake, matcher)
    problems += _shared_patterns(catalogue.pages.values())
    return problems


def _as_active(page: RulePage) -> RulePage:
    """Return the page as an active rule. Even if a rule is retired, its samples must still be correct."""
    return msgspec.structs.replace(page, status="incubating") if page.status == "retired" else page


def _check(page: RulePage, catalogue: Catalogue, matcher: Matcher) -> Iterator[PageError]:
    for part in page.parts:
        for line in part.long_at:
            message = f"the text of the pattern is longer than {LONGEST} characters"
            yield PageError(
                part.path, line, message, "split it into several patterns, or use fragments (docs/rules.md)"
            )
        for number, (sample, line) in enumerate(zip(part.fires, part.fires_at, strict=True), 1):
            if _fired(page, sample, catalogue, matcher) is None:
                message = f"the rule does not fire on the 'log fires' sample {number}"
                remedy = "correct the sample, or change patterns, requires, or unless"
                yield PageError(part.path, line, message, remedy)
        for number, (sample, line) in enumerate(zip(part.quiet, part.quiet_at, strict=True), 1):
            where = _fired(page, sample, catalogue, matcher)
            if where is not None:
                message = f"the rule fires on the 'log quiet' sample {number}" + where
                remedy = "make the patterns more specific, or add a pattern to unless"
                yield PageError(part.path, line, message, remedy)
    if len(page.sections.fixes) != len(page.sections.zh_fixes):
        message = f"{len(page.sections.fixes)} fixes in English, but {len(page.sections.zh_fixes)} in Chinese"
        yield PageError(page.path, 1, message, "write the same fixes in both languages, in the same order")


def _fired(page: RulePage, sample: str, catalogue: Catalogue, matcher: Matcher) -> str | None:
    """Return a description of the sample line on which the rule fired, or ``None`` if it did not fire.

    The description is empty if the rule was inferred from the whole sample.
    """
    for number, rule, _ in matcher.match_text(sample):
        if rule == page.id:
            return f" (on line {number} of the sample)"
    if not _needs_run(page):
        return None
    reading = RunReading(catalogue, matcher)
    reading.feed(lines_of(sample))
    return "" if any(finding.rule == page.id for finding in reading.diagnose().findings) else None


def _needs_run(page: RulePage) -> bool:
    """Return whether a rule can also be inferred from a whole run. If so, its samples must be diagnosed."""
    return page.judged or "concluded" in page.tags


def _shared_patterns(pages: Iterable[RulePage]) -> Iterator[PageError]:
    """Yield a problem for each pattern that two unconditional pages share.

    An unconditional page has no ``requires``, ``unless``, or ``when``.
    """
    owners: dict[str, list[RulePage]] = defaultdict(list)
    for page in pages:
        if not (page.requires or page.unless or page.when) and page.status != "retired":
            for pattern in page.patterns:
                owners[pattern].append(page)
    for pattern, (first, *others) in owners.items():
        for other in others:
            yield PageError(
                other.path,
                1,
                f"the pattern {pattern!r} is also a pattern of {first.id}",
                "keep it in one of the rules, or distinguish the rules with requires, unless, or when",
            )
