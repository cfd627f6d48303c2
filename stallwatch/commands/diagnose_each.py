"""``stallwatch diagnose --each``: a verdict for every file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stallwatch_rules.records import Diagnosis


def report_each(found: Sequence[tuple[str, Diagnosis]], form: str | None, language: str) -> str:
    """A short table, as Markdown where that is asked for; for programs a list with the whole diagnoses."""
    if form == "json":
        from stallwatch_rules.report.json import to_json

        told = [{"file": name, "diagnosis": json.loads(to_json(each, language))} for name, each in found]
        return json.dumps(told, indent=2, ensure_ascii=False) + "\n"
    from stallwatch_rules.report.table import to_markdown_table, to_text

    return to_markdown_table(found, language) if form == "markdown" else to_text(found, language)
