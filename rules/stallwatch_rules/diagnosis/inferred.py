"""For an exception that matches no rule, infer the rule page from the code that raised the exception.

A page is inferred only if the exception ended the run and no rule names a cause. The finding is marked as
inferred. Its confidence is low, its note names the reason, and the exception stays in the list of unknown
exceptions. A page is never inferred from similar words, because such guesses are rarely right
(docs/rules.md). Pages with similar words are shown only as the nearest matches.
"""

from __future__ import annotations

from collections.abc import Sequence

from stallwatch_rules.diagnosis.exceptions import Exceptions, Unknown
from stallwatch_rules.diagnosis.findings import Occurrence, RuleFinding
from stallwatch_rules.failures.raised import Frame, page_of_place
from stallwatch_rules.judgements.conclusions import STANDSTILLS
from stallwatch_rules.messages import Message, message
from stallwatch_rules.pages.catalogue import Catalogue
from stallwatch_rules.pages.page import RulePage
from stallwatch_rules.text.display import earliest

PLACE = "inferred-place"  #: name of a fact in ``confidence``, and key of a message
_INSTALLED = ("site-packages", "dist-packages")  # folders of installed packages
_WHERE_PARTS = 4  # number of final path components that usually identify a library's file and package


def infer_finding(
    exceptions: Exceptions, found: Sequence[RuleFinding], catalogue: Catalogue
) -> RuleFinding | None:
    """Return a finding for the page that names the code that raised the first unknown exception.

    Later exceptions are ignored, because failures during the teardown of a failed program are mostly
    consequences of the first failure. If it is unknown which of several different exceptions came first, no
    page is inferred.
    """
    fatal = [exception for exception in exceptions.fatal if not exception.timed_out]
    fatal = [exception for exception in fatal if not exception.shows_teardown or exception.seen.raised.relays]
    if not fatal:
        return None
    matched = {
        finding.rule for finding in found
    }  # rules in ``found`` matched the log and were already assessed
    pages = [
        page for page in catalogue.pages.values() if _describes_exception(page) and page.id not in matched
    ]
    same = _earliest_kind(fatal)
    if not same:
        return None
    raised = same[0].seen.raised
    placed = page_of_place(raised, pages)
    if placed is None:
        return None
    page, call = placed
    where = _where(call) if call is not None else raised.exception
    return _inferred(page, same, message(f"diagnosis.{PLACE}", where=where), call)


def _describes_exception(page: RulePage) -> bool:
    """Return whether a page can describe an exception: a fatal cause or symptom that is not a stall."""
    ends = page.harm == "fatal" and page.role in ("cause", "symptom")
    return ends and page.status != "retired" and bool(page.patterns) and page.id not in STANDSTILLS


def _earliest_kind(fatal: list[Unknown]) -> list[Unknown]:
    """Return the earliest exception, followed by the same exception on other ranks.

    The result does not depend on the order in which ranks were read. It is empty if neither times nor the
    order of lines in one file show which exception came first.
    """
    lines = [exception.seen.raised.line for exception in fatal]
    line = earliest(lines)
    if any(each.time is None for each in lines):
        if len({each.source for each in lines}) == 1:
            line = min(lines, key=lambda each: each.number)
        elif len({exception.seen.raised.exception for exception in fatal}) > 1:
            return []
    first = next(exception for exception in fatal if exception.seen.raised.line is line)
    kind = (first.seen.raised.exception, first.seen.raised.message)
    others = (exception for exception in fatal if exception is not first)
    return [
        first,
        *(
            exception
            for exception in others
            if (exception.seen.raised.exception, exception.seen.raised.message) == kind
        ),
    ]


def _inferred(page: RulePage, same: list[Unknown], note: Message, call: Frame | None) -> RuleFinding:
    ordered = sorted(
        same,
        key=lambda exception: (exception.stream[0], exception.stream[1] is None, exception.stream[1] or 0),
    )
    places = [
        Occurrence(exception.stream, exception.index, exception.time, exception.seen.raised.step)
        for exception in ordered
    ]
    raised = same[0].seen.raised
    return RuleFinding(
        page,
        {},
        tuple(places),
        0,
        "fatal",
        page.role,
        note=note,
        count=sum(exception.seen.count for exception in same),
        facts=frozenset([PLACE]),
        proof=(str(call),) if call is not None else (),
        where=raised.line,
        step=raised.step,
    )


def _where(call: Frame) -> str:
    parts = call.path.replace("\\", "/").split("/")
    packages = [at for at, part in enumerate(parts) if part in _INSTALLED]
    path = "/".join(parts[packages[-1] + 1 :] if packages else parts[-_WHERE_PARTS:])
    return f"{path}, {call.name}" if call.name else path
