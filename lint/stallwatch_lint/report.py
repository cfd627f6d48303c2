"""Report the diagnostics of a check: on a terminal for users and as JSON for programs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Literal

import msgspec
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from stallwatch_lint.diagnostic import Diagnostic, Severity
from stallwatch_rules.locale import rendered, say
from stallwatch_rules.text.controls import without_controls

SCHEMA = 1
#: The checked part of the input: all, only the versions, or only the readable part.
Covered = Literal["all", "versions", "part"]
_NOTHING: dict[Covered, str] = {"all": "clear", "versions": "clear-versions", "part": "clear-part"}
_STYLES: dict[Severity, str] = {"fails": "red", "likely": "yellow", "advice": "cyan"}


def to_json(
    diagnostics: Sequence[Diagnostic], looked_at: Sequence[str], problems: Sequence[str], language: str
) -> str:
    """Return the report as a JSON object.

    The value ``ok`` is true if everything was read and nothing is certain to fail.
    """
    content = {
        "schema": SCHEMA,
        "ok": not problems and not any(diagnostic.severity == "fails" for diagnostic in diagnostics),
        "looked_at": list(looked_at),
        "findings": [_entry(diagnostic, language) for diagnostic in diagnostics],
        "problems": list(problems),
    }
    return msgspec.json.format(msgspec.json.encode(content), indent=2).decode() + "\n"


def print_check(
    diagnostics: Sequence[Diagnostic],
    looked_at: Sequence[str],
    console: Console,
    language: str,
    *,
    covered: Covered = "all",
) -> None:
    """Print the most severe diagnostics first. The output is readable at 80 columns and without color.

    `covered` is the part of the run that was checked. If the run was not checked completely, a report without
    diagnostics does not mean that the run has no problems.
    """
    rows: list[RenderableType] = []
    for diagnostic in diagnostics:
        rows += [_block(rendered(diagnostic, language), language), Text()]
    counts = Counter(diagnostic.severity for diagnostic in diagnostics)
    found = [
        f"{counts[severity]} {say(f'lint.count-{severity}', language)}"
        for severity in _STYLES
        if counts[severity]
    ]
    style = _STYLES[diagnostics[0].severity] if found else "yellow" if covered == "part" else "green"
    summary = ", ".join(found) or say(f"lint.{_NOTHING[covered]}", language)
    rows.append(Text(summary, style=f"bold {style}"))
    rows.append(Text(" · ".join(without_controls(source) for source in looked_at), style="dim"))
    console.print(Group(*rows), highlight=False, emoji=False)


def _block(diagnostic: Diagnostic, language: str) -> RenderableType:
    colour = "white on red" if diagnostic.severity == "fails" else f"black on {_STYLES[diagnostic.severity]}"
    badge = say(f"lint.badge-{diagnostic.severity}", language)
    what = without_controls(str(diagnostic.what))
    rows: list[RenderableType] = [
        Text.assemble((f" {badge} ", f"bold {colour}"), "  ", (what, "bold")),
    ]
    if diagnostic.file:
        place = f"{diagnostic.file}:{diagnostic.line}" if diagnostic.line else diagnostic.file
        rows.append(_indent(Text(without_controls(place), style="cyan")))
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    grid.add_row(say("lint.why", language), Text(without_controls(str(diagnostic.why))))
    grid.add_row(say("lint.fix", language), Text(without_controls(str(diagnostic.fix))))
    if diagnostic.rule:
        page = f"stallwatch rules show {diagnostic.rule}"
        grid.add_row(say("lint.page", language), Text(page, style="dim"))
    rows.append(_indent(grid))
    return Group(*rows)


def _indent(row: RenderableType) -> RenderableType:
    return Padding(row, (0, 0, 0, 2), expand=False)


def _entry(diagnostic: Diagnostic, language: str) -> dict[str, object]:
    words = rendered(diagnostic, language)
    fields = ("check", "severity", "rule", "file", "line", "what", "why", "fix")
    return {name: getattr(words, name) for name in fields}
