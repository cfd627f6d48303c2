"""A whole draft from a run that was read: its failure, a name, a family and the page's text."""

from __future__ import annotations

from dataclasses import dataclass

from stallwatch_rules.authoring.checking import check_page
from stallwatch_rules.authoring.drafting import (
    Failure,
    draft,
    failure_of,
    id_of,
    origin_of,
    pattern_of,
    quiet_line,
)
from stallwatch_rules.pages.page import PageError, parse_page
from stallwatch_rules.reading import RunReading
from stallwatch_rules.text.reported import shown

OWN_FAMILY = "own"  #: where the log does not tell which package the failure comes from


@dataclass(frozen=True)
class Proposal:
    """A page as it is proposed to its author."""

    rule: str
    family: str
    text: str
    failure: Failure

    def problems(self, path: str) -> list[PageError]:
        """Why the page would not load from `path`, or not do what it says; empty when it is sound."""
        try:
            return check_page(parse_page(self.text, path, chinese=False))
        except PageError as error:
            return error.every()


def propose(reading: RunReading, *, since: str, rule: str = "", family: str = "") -> Proposal:
    """A page for the unknown failure of this run, under this name where one is given.

    Raises ``DraftError`` where a rule knows the failure, or there is none.
    """
    diagnosis = reading.diagnose()
    failure = failure_of(diagnosis)
    package, _ = origin_of(failure)
    rule, family = rule or id_of(failure, package), family or package or OWN_FAMILY
    pattern = pattern_of(failure)
    text = draft(
        failure,
        pattern,
        rule=rule,
        family=family,
        since=since,
        quiet=quiet_line(failure, pattern, _healthy(reading)),
        versions=diagnosis.environment,
    )
    return Proposal(rule, family, text, failure)


def _healthy(reading: RunReading) -> list[str]:
    """Messages that are no errors, redacted."""
    return [
        shown(entry.first.text)
        for stream in reading.streams.values()
        for entry in stream.templates.entries.values()
        if entry.level != "error"
    ]
