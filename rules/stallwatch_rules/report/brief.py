"""The shortest report: verdict, cause, one line of evidence, the first fix. Plain text, a fact a line."""

from __future__ import annotations

from collections.abc import Iterator

from stallwatch_rules.records import Diagnosis
from stallwatch_rules.report import phrases
from stallwatch_rules.report.clean import clean_diagnosis
from stallwatch_rules.report.words import word


def to_brief(diagnosis: Diagnosis, language: str = "en") -> str:
    """At most five lines."""
    return "".join(f"{line}\n" for line in _lines(clean_diagnosis(diagnosis), language))


def _lines(diagnosis: Diagnosis, language: str) -> Iterator[str]:
    yield f"{phrases.badge(diagnosis, language)}: {phrases.headline(diagnosis, language)}"
    primary = diagnosis.primary
    if primary is None:
        if diagnosis.verdict == "unknown-failure" and diagnosis.unknown:
            yield f"  {phrases.exception_where(diagnosis.unknown[0], language)}"
        yield from (f"  {note}" for note in diagnosis.notes[:1])
        return
    facts = [primary.rule, phrases.certainty(primary, language), phrases.where(primary, language)]
    yield f"  {' · '.join(fact for fact in facts if fact)}"
    note = phrases.primary_note(diagnosis)
    if note and not primary.evidence:
        yield f"  {note}"
    yield from (f"  | {line}" for line in primary.evidence[:1])
    for fix in primary.fixes[:1]:
        yield f"  {word('fixes', language)}: {' '.join(fix.split())}"
