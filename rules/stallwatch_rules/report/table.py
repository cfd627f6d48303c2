"""Summarize several diagnoses in a short table, with one row for each log."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from stallwatch_rules.records import Diagnosis
from stallwatch_rules.report import phrases
from stallwatch_rules.report.markdown import plain
from stallwatch_rules.report.phrases import word

_WIDEST = 40  # maximum width of the column of names; 80 columns then also fit a verdict and its progress


def _rows(found: Sequence[tuple[str, Diagnosis]], language: str) -> Iterator[tuple[str, str, str, str]]:
    """Yield the file, the verdict, the headline, and the progress of each diagnosis."""
    for name, diagnosis in found:
        shown = phrases.shown(diagnosis, language)
        primary = shown.diagnosis.primary
        about = f"{primary.rule}: {shown.headline}" if primary is not None else shown.headline
        yield name, shown.badge, about, phrases.progress_line(shown.diagnosis, language)


def to_text(found: Sequence[tuple[str, Diagnosis]], language: str = "en") -> str:
    """Return the table as text. The rule and headline of each file are below its name and verdict.

    If names are long, their common folder is shown only once, above the table.
    """
    wide, common = max((len(name) for name, _ in found), default=0), 0
    lines = []
    if wide > _WIDEST and len(found) > 1:
        folders = [name.split("/")[:-1] for name, _ in found]
        folder = "/".join([*os.path.commonprefix(folders), ""])  # noqa: RUF071 - compares lists of words
        if len(folder) > 1:
            common = len(folder)
            lines.append(word("each-folder", language, folder=folder))
    for name, verdict, about, progress in _rows(found, language):
        name = f"{name[common:]:{min(wide - common, _WIDEST)}}"
        lines.append(f"{name}  {verdict}" + (f"  ({progress})" if progress else ""))
        lines.append(f"  {about}")
    return "".join(f"{line}\n" for line in lines)


def to_markdown_table(found: Sequence[tuple[str, Diagnosis]], language: str = "en") -> str:
    """Return the table as Markdown for an issue tracker."""
    heads = [word(key, language) for key in ("file-head", "verdict", "primary", "progress")]
    lines = [f"| {' | '.join(heads)} |", "|---|---|---|---|"]
    lines += [f"| {' | '.join(map(plain, row))} |" for row in _rows(found, language)]
    return "\n".join(lines) + "\n"
