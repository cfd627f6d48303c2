"""Write the shortest report as plain text: verdict, cause, one line of evidence, and the first fix."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from stallwatch_rules.failures.raised import own_frame
from stallwatch_rules.locale import render
from stallwatch_rules.messages import Text
from stallwatch_rules.records import Diagnosis, JobSummary, UnknownException
from stallwatch_rules.report import jobtable, phrases
from stallwatch_rules.report.phrases import Shown, word


def to_brief(diagnosis: Diagnosis, language: str = "en", jobs: Sequence[JobSummary] = ()) -> str:
    """Return a report of at most five lines. If there are several `jobs`, a line for each job follows."""
    lines = [*_lines(phrases.shown(diagnosis, language), language)]
    if jobs:
        found = jobtable.table(jobs, language)
        rows = [" · ".join(filter(None, row.cells[:5])) for row in found.rows]
        lines += filter(None, [found.summary, *rows, found.more])
    return "".join(f"{line}\n" for line in lines)


def _lines(shown: Shown, language: str) -> Iterator[str]:
    yield f"{shown.badge}: {shown.headline}"
    diagnosis, primary = shown.diagnosis, shown.diagnosis.primary
    if primary is None:
        if diagnosis.verdict == "unknown-failure" and diagnosis.unknown:
            yield from _unknown(diagnosis.unknown[0], diagnosis.notes[:1], language)
        else:
            yield from (f"  {note}" for note in diagnosis.notes[:1])
        return
    yield f"  {' · '.join(filter(None, [primary.rule, shown.certainty, shown.where]))}"
    if shown.note and not primary.evidence:
        yield f"  {shown.note}"
    yield from (f"  | {line}" for line in primary.evidence[:1])
    for fix in primary.fixes[:1]:
        yield f"  {word('fixes', language)}: {' '.join(render(fix).split())}"


def _unknown(unknown: UnknownException, notes: Sequence[Text], language: str) -> Iterator[str]:
    """Yield the location of an exception, the innermost frame of the user's code, notes, and advice."""
    yield f"  {phrases.exception_where(unknown, language)}"
    frame = own_frame(unknown.frames)
    if frame:
        yield f"  | {frame}"
    yield from (f"  {note}" for note in notes)
    if unknown.advice:
        advice = render(unknown.advice)
    elif unknown.nearest:
        advice = word("next-nearest", language, rule=unknown.nearest[0].rule)
    else:
        advice = word("next-frame" if frame else "next-report", language)
    yield f"  {word('fixes', language)}: {advice}"
