"""Write the report for an issue tracker: Markdown without HTML, with log text only inside code fences."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from stallwatch_rules.locale import render
from stallwatch_rules.records import Diagnosis, JobSummary, Primary, UnknownException
from stallwatch_rules.report import jobtable, phrases
from stallwatch_rules.report.phrases import Shown, word
from stallwatch_rules.text.lazy import lazy

_BACKTICKS = lazy(r"`+")
_MARKUP = lazy(r"([\\`*_\[\]<>|#~@])")


def to_markdown(diagnosis: Diagnosis, language: str = "en", jobs: Sequence[JobSummary] = ()) -> str:
    """Return the diagnosis as Markdown. If there are several `jobs`, a table of the jobs comes first."""
    shown = phrases.shown(diagnosis, language)
    diagnosis = shown.diagnosis
    blocks = []
    if jobs:
        table = jobtable.table(jobs, language)
        blocks += [f"## {word('jobs', language)}", _table(table)]
        blocks += [plain(line) for line in (table.more, table.summary) if line]
    blocks.append(f"## {shown.badge}: {plain(shown.headline)}")
    blocks += [f"> {plain(doubt)}" for doubt in shown.doubts]
    if diagnosis.primary is not None:
        blocks += _primary(shown, diagnosis.primary, language)
    if diagnosis.digest:
        blocks.append(f"### {word('digest', language)}")
        blocks.append("\n".join(f"- {plain(render(line))}" for line in diagnosis.digest))
    if shown.others:
        blocks.append(f"### {word('findings', language)}")
        blocks.append(
            "\n".join(
                f"- {code(finding.rule)}: {plain(render(finding.note or finding.title))} ({about})"
                for finding, about in shown.others
            )
        )
    if diagnosis.unknown:
        blocks.append(f"### {word('unknown', language)}")
        blocks += [_unknown(exception, language) for exception in diagnosis.unknown]
    if diagnosis.new_lines:
        blocks.append(f"### {word('new-lines', language)}")
        lines = []
        for new in diagnosis.new_lines:
            lines += [new.exemplar, f"    {phrases.new_line_where(new, language)}"]
        blocks.append(fence(lines))
    if diagnosis.starts:
        table = jobtable.starts_table(diagnosis.starts, language)
        blocks += [f"### {word('starts', language)}", plain(table.summary), _table(table)]
        blocks += [plain(table.more)] if table.more else []
    facts = [f"- {name}: {plain(line)}" for name, line in shown.facts]
    facts += [f"- {plain(render(note))}" for note in diagnosis.notes]
    blocks.append("\n".join([*facts, f"- {shown.stats}"]))
    return "\n\n".join(blocks) + "\n"


def _table(table: jobtable.Table) -> str:
    rows = [table.heads, ["---"] * len(table.heads)]
    for row in table.rows:
        cells = [plain(cell) for cell in row.cells]
        rows.append([f"**{cell}**" if cell else "" for cell in cells] if row.reported else cells)
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _primary(shown: Shown, primary: Primary, language: str) -> Iterable[str]:
    about = [f"{word('rule', language)} {code(primary.rule)}", shown.certainty]
    yield " · ".join([*about, plain(shown.where)] if shown.where else about)
    if shown.note:
        yield plain(shown.note)
    if primary.evidence:
        yield f"### {word('evidence', language)}"
        yield fence(map(render, primary.evidence))
    if primary.why:
        yield f"### {word('why', language)}"
        yield render(primary.why)  # Markdown from the rule page
    if primary.fixes:
        yield f"### {word('fixes', language)}"
        yield "\n".join(_numbered(number, render(fix)) for number, fix in enumerate(primary.fixes, 1))


def _numbered(number: int, fix: str) -> str:
    first, *rest = fix.splitlines() or [""]
    return "\n".join([f"{number}. {first}", *("   " + line if line else "" for line in rest)])


def _unknown(unknown: UnknownException, language: str) -> str:
    lines = [phrases.exception_line(unknown, language)]
    if unknown.root:
        lines.append(f"({word('root', language)}: {unknown.root})")
    lines += phrases.marked_frames(unknown.frames)
    near = phrases.nearest_line(unknown, language)
    blocks = [plain(phrases.exception_where(unknown, language)), fence(lines)]
    blocks += [plain(text) for text in (render(unknown.advice), near) if text]
    return "\n\n".join(blocks)


def fence(lines: Iterable[str]) -> str:
    """Return a code block whose fence is longer than any sequence of backticks inside it."""
    text = "\n".join(lines)
    ticks = "`" * max(3, 1 + max((len(run) for run in _BACKTICKS.findall(text)), default=0))
    return f"{ticks}text\n{text}\n{ticks}"


def code(text: str) -> str:
    """Return the text as inline code, with a fence longer than any sequence of backticks in the text."""
    ticks = "`" * (1 + max((len(run) for run in _BACKTICKS.findall(text)), default=0))
    pad = " " if "`" in text else ""
    return f"{ticks}{pad}{text}{pad}{ticks}"


def plain(text: str) -> str:
    """Return text that Markdown shows unchanged: without emphasis, links, HTML, or mentions of users."""
    return _MARKUP.sub(r"\\\1", text.replace("\n", " "))
