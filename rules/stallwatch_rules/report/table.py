"""Summarize several diagnoses in a short table, with one row for each log."""

from __future__ import annotations

from collections.abc import Sequence

from stallwatch_rules.records import Diagnosis
from stallwatch_rules.report import phrases
from stallwatch_rules.report.markdown import plain
from stallwatch_rules.report.phrases import word

Row = tuple[str, str, str, str]  #: file, verdict, headline, progress


def rows(found: Sequence[tuple[str, Diagnosis]], language: str = "en") -> list[Row]:
    """Return the table's rows, in the order of the argument."""
    return [_row(name, phrases.shown(diagnosis, language), language) for name, diagnosis in found]


def _row(name: str, shown: phrases.Shown, language: str) -> Row:
    primary = shown.diagnosis.primary
    about = f"{primary.rule}: {shown.headline}" if primary is not None else shown.headline
    return name, shown.badge, about, phrases.progress_line(shown.diagnosis, language)


def to_text(found: Sequence[tuple[str, Diagnosis]], language: str = "en") -> str:
    """Return the table as text. Below the name and verdict of each file are the rule and the headline."""
    found_rows = rows(found, language)
    wide = max((len(name) for name, *_ in found_rows), default=0)
    lines = []
    for name, verdict, about, progress in found_rows:
        lines.append(f"{name:{wide}}  {verdict}" + (f"  ({progress})" if progress else ""))
        lines.append(f"  {about}")
    return "".join(f"{line}\n" for line in lines)


def to_markdown_table(found: Sequence[tuple[str, Diagnosis]], language: str = "en") -> str:
    """Return the table as Markdown for an issue tracker."""
    heads = [word(key, language) for key in ("file-head", "verdict", "primary", "progress")]
    lines = [f"| {' | '.join(heads)} |", "|---|---|---|---|"]
    lines += [f"| {' | '.join(map(plain, row))} |" for row in rows(found, language)]
    return "\n".join(lines) + "\n"
