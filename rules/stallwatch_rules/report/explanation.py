"""Explain a verdict by the contributions of the assessors, for ``stallwatch diagnose --explain``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import get_args

from stallwatch_rules.locale import render
from stallwatch_rules.records import Diagnosis, FindingChange, Noted, PassedOver, PassedReason
from stallwatch_rules.report import phrases
from stallwatch_rules.report.phrases import word


def explanation(diagnosis: Diagnosis, language: str = "en") -> Iterator[tuple[str, str]]:
    """Yield the name of each assessor that changed something, with a line about the change.

    The last lines name the root cause, the findings that were not chosen, and the verdict.
    """
    for contribution in diagnosis.explained:
        step = contribution.assessor
        if step == "root-cause":
            step = word("root-cause", language)
            yield step, _chosen(diagnosis, language)
        for change in contribution.changes:
            yield step, _change_line(change, language)
        if contribution.noted:
            noted = [text for note in contribution.noted for text in _noted(note, language)]
            yield step, phrases.listed(noted, language, "semicolons")
        for text in _passed_over(contribution.passed_over, language):
            yield step, text
    yield word("verdict", language), render(phrases.badge(diagnosis), language)


def _chosen(diagnosis: Diagnosis, language: str) -> str:
    primary = diagnosis.primary
    if primary is None:
        return phrases.exception_line(diagnosis.unknown[0], language)
    return f"{primary.rule} ({phrases.certainty(primary, language)})"


def _noted(noted: Noted, language: str) -> Iterator[str]:
    facts, rules = ", ".join(noted.facts), ", ".join(noted.explains)
    if noted.rule is None:
        yield word("noted-of-run", language, facts=facts)
        return
    if facts:
        yield word("noted", language, rule=noted.rule, facts=facts)
    if rules:
        yield word("noted-explains", language, rule=noted.rule, rules=rules)


def _passed_over(passed: Sequence[PassedOver], language: str) -> Iterator[str]:
    """Yield a line for each reason why findings were not chosen as the root cause."""
    for reason in get_args(PassedReason):
        rules = ", ".join(finding.rule for finding in passed if finding.reason == reason)
        if rules:
            yield word(f"chosen-{reason}", language, rules=rules)


def _change_line(change: FindingChange, language: str) -> str:
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
    return phrases.listed([word(key, language) for key in (role, harm) if key is not None], language)
