"""The diagnostics of a check for people, on a terminal, and for programs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from stallwatch_lint.diagnostic import Diagnostic, Severity, Words
from stallwatch_rules.text.controls import without_controls

SCHEMA = 1
#: all of the input, all of it where that was nothing but versions, or what of it could be read
Covered = Literal["all", "versions", "part"]
_NOTHING: dict[Covered, Words] = {
    "all": Words("Nothing known stands against this run.", "没有发现已知的问题。"),
    "versions": Words(
        "Only versions were checked: nothing known stands against them.", "仅检查了版本：没有发现已知的问题。"
    ),
    "part": Words("No verdict: not everything could be read.", "没有结论：有内容无法读取。"),
}
_BADGES: dict[Severity, tuple[Words, str]] = {
    "fails": (Words("FAILS", "会失败"), "bold white on red"),
    "likely": (Words("LIKELY", "很可能失败"), "bold black on yellow"),
    "advice": (Words("ADVICE", "建议"), "bold black on cyan"),
}
_WHY, _FIX, _RULE = Words("why", "原因"), Words("fix", "处理"), Words("page", "说明")


def to_json(
    diagnostics: Sequence[Diagnostic], looked_at: Sequence[str], problems: Sequence[str], language: str
) -> str:
    """One JSON object; ``ok`` is whether all was read and nothing is known that will fail."""
    return (
        msgspec.json.format(
            msgspec.json.encode(
                {
                    "schema": SCHEMA,
                    "ok": not problems
                    and not any(diagnostic.severity == "fails" for diagnostic in diagnostics),
                    "looked_at": list(looked_at),
                    "findings": [_entry(diagnostic, language) for diagnostic in diagnostics],
                    "problems": list(problems),
                }
            ),
            indent=2,
        ).decode()
        + "\n"
    )


def print_check(
    diagnostics: Sequence[Diagnostic],
    looked_at: Sequence[str],
    console: Console,
    language: str,
    *,
    covered: Covered = "all",
) -> None:
    """Print the diagnostics, the gravest first; readable at 80 columns and without colour.

    `covered` says what was looked at: where that is not all of the run, no diagnostic is no all-clear.
    """
    rows: list[RenderableType] = []
    for diagnostic in diagnostics:
        rows += [_one(diagnostic, language), Text()]
    rows.append(_summary(diagnostics, language, covered))
    rows.append(Text(" · ".join(without_controls(one) for one in looked_at), style="dim"))
    console.print(Group(*rows), highlight=False, emoji=False)


def summary(diagnostics: Sequence[Diagnostic], language: str, *, covered: Covered = "all") -> str:
    """One line on what was found; `covered` as for ``print_check``."""
    counts = {severity: sum(one.severity == severity for one in diagnostics) for severity in _BADGES}
    if not diagnostics:
        return _NOTHING[covered].text(language)
    parts = (
        (counts["fails"], Words("will fail", "会失败")),
        (counts["likely"], Words("likely to fail", "很可能失败")),
        (counts["advice"], Words("worth knowing", "值得注意")),
    )
    return ", ".join(f"{count} {words.text(language)}" for count, words in parts if count)


def _one(diagnostic: Diagnostic, language: str) -> RenderableType:
    words, style = _BADGES[diagnostic.severity]
    head = Text.assemble(
        (f" {words.text(language)} ", style),
        "  ",
        (without_controls(diagnostic.what.text(language)), "bold"),
    )
    rows: list[RenderableType] = [head]
    if diagnostic.file:
        rows.append(_indent(Text(without_controls(_place(diagnostic)), style="cyan")))
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    grid.add_row(_WHY.text(language), Text(without_controls(diagnostic.why.text(language))))
    grid.add_row(_FIX.text(language), Text(without_controls(diagnostic.fix.text(language))))
    if diagnostic.rule:
        grid.add_row(_RULE.text(language), Text(f"stallwatch rules show {diagnostic.rule}", style="dim"))
    rows.append(_indent(grid))
    return Group(*rows)


def _place(diagnostic: Diagnostic) -> str:
    return f"{diagnostic.file}:{diagnostic.line}" if diagnostic.line else str(diagnostic.file)


def _summary(diagnostics: Sequence[Diagnostic], language: str, covered: Covered) -> Text:
    worst = diagnostics[0].severity if diagnostics else None
    clear = "bold yellow" if covered == "part" else "bold green"
    style = {"fails": "bold red", "likely": "bold yellow", "advice": "bold cyan", None: clear}[worst]
    return Text(summary(diagnostics, language, covered=covered), style=style)


def _indent(row: RenderableType) -> RenderableType:
    return Padding(row, (0, 0, 0, 2), expand=False)


def _entry(diagnostic: Diagnostic, language: str) -> dict[str, Any]:
    return {
        "check": diagnostic.check,
        "severity": diagnostic.severity,
        "rule": diagnostic.rule,
        "file": diagnostic.file,
        "line": diagnostic.line,
        "what": diagnostic.what.text(language),
        "why": diagnostic.why.text(language),
        "fix": diagnostic.fix.text(language),
    }
