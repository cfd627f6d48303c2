"""How a verdict came about: what each assessor contributed, for ``stallwatch diagnose --explain``."""

from __future__ import annotations

from collections.abc import Iterator

from stallwatch_rules.locale import render
from stallwatch_rules.records import Diagnosis, FindingChange
from stallwatch_rules.report import phrases
from stallwatch_rules.report.phrases import word


def explanation(diagnosis: Diagnosis, language: str = "en") -> Iterator[tuple[str, str]]:
    """Yield (assessor, what it did to one finding), then the root cause and the verdict."""
    for contribution in diagnosis.explained:
        for change in contribution.changes:
            yield contribution.assessor, _told(change, language)
    if diagnosis.primary is not None:
        primary = diagnosis.primary
        yield word("root-cause", language), f"{primary.rule} ({phrases.certainty(primary, language)})"
    elif diagnosis.unknown:
        yield word("root-cause", language), phrases.exception_line(diagnosis.unknown[0], language)
    yield word("verdict", language), render(phrases.badge(diagnosis), language)


def _told(change: FindingChange, language: str) -> str:
    before = _judged(change.role_before, change.harm_before, language)
    after = _judged(change.role, change.harm, language)
    if not before:
        text = f"+ {change.rule} ({after})"
    elif not after:
        text = f"- {change.rule}"
    elif before != after:
        text = f"{change.rule}: {before} → {after}"
    else:
        text = change.rule
    return f"{text}: {render(change.note, language)}" if change.note else text


def _judged(role: str | None, harm: str | None, language: str) -> str:
    return ", ".join(word(key, language) for key in (role, harm) if key is not None)
