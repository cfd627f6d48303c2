"""Write the report for a terminal: it starts with the verdict and is readable at 80 columns without color.

Log text is shown as literal text, never interpreted as Rich markup.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from stallwatch_rules.locale import render
from stallwatch_rules.records import Diagnosis, JobSummary, Primary, UnknownException, Verdict
from stallwatch_rules.report import jobtable, phrases
from stallwatch_rules.report.clean import clean_diagnosis
from stallwatch_rules.report.explanation import explanation
from stallwatch_rules.report.phrases import word
from stallwatch_rules.text.masking import masked

_COLORS: dict[Verdict, str] = {
    "failed": "red",
    "unknown-failure": "red",
    "stalled": "red",
    "degraded": "yellow",
    "interrupted": "cyan",
    "finished": "green",
    "unfinished": "yellow",
    "healthy": "green",
}
_HARM_STYLES = {"fatal": "red", "degrading": "yellow", "harmless": "green", "by-progress": "cyan"}
MAX_FINDINGS = 12
MAX_FIXES = 3  #: maximum number of fixes shown for a run across several hosts
MAX_UNKNOWN = 5
MAX_NEW_LINES = 5


def print_report(
    diagnosis: Diagnosis, console: Console, language: str = "en", *, explain: bool = False
) -> None:
    """Print the report. If the output is a file or a pipe, trailing spaces are removed."""
    _print(renderable(diagnosis, language, explain=explain), console)


def print_jobs(jobs: Sequence[JobSummary], console: Console, language: str = "en", another: str = "") -> None:
    """Print a table of several jobs, which precedes the report of one job."""
    table = jobtable.table(jobs, language)
    _print(Group(*_table(table), Text(), Text(table.summary)), console)
    if another:  # the command is not wrapped, so that it can be copied
        line = Text(word("jobs-another", language, command=another))
        console.print(line, highlight=False, emoji=False, soft_wrap=True)
    console.print()


def _print(shown: RenderableType, console: Console) -> None:
    if console.is_terminal:
        console.print(shown, highlight=False, emoji=False)
        return
    with console.capture() as captured:
        console.print(shown, highlight=False, emoji=False)
    console.file.write("".join(f"{line.rstrip()}\n" for line in captured.get().splitlines()))


def renderable(diagnosis: Diagnosis, language: str = "en", *, explain: bool = False) -> RenderableType:
    """Return the report as a Rich renderable."""
    shown = phrases.shown(diagnosis, language)
    words = shown.diagnosis
    color = _COLORS.get(words.verdict)
    style = f"bold {'white' if color == 'red' else 'black'} on {color}" if color else "bold"
    badge = Text(f" {shown.badge} ", style=style)
    parts: list[RenderableType] = [Text.assemble(badge, "  ", (shown.headline, "bold")), Text()]
    for doubt in shown.doubts:
        parts += [_indent(Text(doubt, style="yellow")), Text()]
    digest = _section("digest", [Text(f"- {line}") for line in words.digest], language)
    if words.primary is not None:
        # In a run across several hosts, the findings of the rank that failed first are at the top.
        first, digest = (digest, []) if words.hosts else ([], digest)
        parts += _primary(shown, words.primary, language, first)
    parts += digest
    unknown = _unknown(words.unknown, language)
    findings = _findings(shown, language)
    parts += [*unknown, *findings] if words.verdict == "unknown-failure" else [*findings, *unknown]
    parts += _new_lines(words, language)
    if words.starts:
        table = jobtable.starts_table(words.starts, language)
        parts += _section("starts", [Text(table.summary), *_table(table)], language)
    parts += [Text.assemble((name, "bold"), "  ", line) for name, line in shown.facts]
    parts += _section("notes", [Text(f"- {note}") for note in words.notes], language)
    if explain:
        parts += _section("explained", [_explanation(clean_diagnosis(diagnosis), language)], language)
    parts.append(Text(shown.stats, style="dim"))
    if words.verdict == "unknown-failure" and _can_be_drafted(diagnosis):
        parts.append(Text(word("next-draft", language), style="dim"))
    return Group(*parts)


def _can_be_drafted(diagnosis: Diagnosis) -> bool:
    from stallwatch_rules.authoring.drafting import can_be_drafted  # few reports need the authors' tools

    return can_be_drafted(diagnosis)


def _explanation(diagnosis: Diagnosis, language: str) -> RenderableType:
    lines = Table.grid(padding=(0, 2))
    previous = ""
    for assessor, text in explanation(diagnosis, language):
        lines.add_row(Text("" if assessor == previous else assessor, style="dim"), Text(text))
        previous = assessor
    return lines


def _table(table: jobtable.Table) -> list[RenderableType]:
    lines = Table(box=None, pad_edge=False, show_edge=False, header_style="dim")
    lines.add_column("")
    for head in table.heads:
        lines.add_column(Text(head), overflow="fold")
    for row in table.rows:
        name, verdict, *others = (Text(cell) for cell in row.cells)
        verdict.stylize(_COLORS.get(row.verdict, ""))
        mark = Text("▶" if row.reported else "")
        lines.add_row(mark, name, verdict, *others, style="bold" if row.reported else "")
    return [lines, Text(table.more, style="dim")] if table.more else [lines]


def _primary(
    shown: phrases.Shown, primary: Primary, language: str, first: list[RenderableType]
) -> list[RenderableType]:
    about = f"{word('rule', language)} {primary.rule} · {shown.certainty}"
    parts: list[RenderableType] = [
        *(_indent(Text(line)) for line in (about, shown.where, shown.note) if line),
        Text(),
        *first,
    ]
    evidence = [render(line) for line in primary.evidence]
    if shown.diagnosis.hosts:  # equal lines of several ranks are shown once, so that the report is short
        evidence = list({masked(line): line for line in reversed(evidence)}.values())[::-1]
    parts += _section("evidence", [Text(f"| {line}") for line in evidence], language)
    parts += _section("why", [Text(render(primary.why))] if primary.why else [], language)
    most = MAX_FIXES if shown.diagnosis.hosts else len(primary.fixes)
    fixes = [_numbered(number, render(fix)) for number, fix in enumerate(primary.fixes[:most], 1)]
    if (more := len(primary.fixes) - most) > 0:
        fixes.append(Text(word("fixes-more", language, count=more, rule=primary.rule)))
    return parts + _section("fixes", fixes, language)


def _numbered(number: int, text: str) -> RenderableType:
    grid = Table.grid(padding=(0, 1))
    grid.add_column()
    grid.add_column(overflow="fold")  # by default, Rich truncates a word that is longer than the line
    grid.add_row(Text(f"{number}."), Text(text))
    return grid


def _findings(shown: phrases.Shown, language: str) -> list[RenderableType]:
    rows: list[RenderableType] = []
    for finding, about in shown.others[:MAX_FINDINGS]:
        rows.append(Text.assemble((finding.rule, _HARM_STYLES[finding.harm]), f"  {about}"))
        rows.append(_indent(Text(render(finding.note or finding.title))))
    if len(shown.others) > MAX_FINDINGS:
        rows.append(Text(f"… {len(shown.others) - MAX_FINDINGS}"))
    return _section("findings", rows, language)


def _unknown(unknown: list[UnknownException], language: str) -> list[RenderableType]:
    rows: list[RenderableType] = []
    for exception in unknown[:MAX_UNKNOWN]:
        rows.append(Text(phrases.exception_line(exception, language), style="red"))
        rows.append(_indent(Text(phrases.exception_where(exception, language))))
        if exception.root:
            rows.append(_indent(Text(f"{word('root', language)}: {exception.root}")))
        for frame in phrases.marked_frames(exception.frames):
            rows.append(_indent(Text(frame, style="dim" if frame.startswith(" ") else "bold")))
        if exception.advice:
            rows.append(_indent(Text(render(exception.advice))))
        near = phrases.nearest_line(exception, language)
        if near:
            rows.append(_indent(Text(near)))
    if len(unknown) > MAX_UNKNOWN:
        rows.append(Text(f"… {len(unknown) - MAX_UNKNOWN}"))
    return _section("unknown", rows, language)


def _new_lines(diagnosis: Diagnosis, language: str) -> list[RenderableType]:
    rows: list[RenderableType] = []
    hosts = {rank: host.host for host in diagnosis.hosts for rank in host.ranks}
    for new_line in diagnosis.new_lines[:MAX_NEW_LINES]:
        rows.append(Text(f"| {new_line.exemplar}", style="red" if new_line.level == "error" else ""))
        rows.append(_indent(Text(phrases.new_line_where(new_line, language, hosts), style="dim")))
    return _section("new-lines", rows, language)


def _section(key: str, rows: Sequence[RenderableType], language: str) -> list[RenderableType]:
    if not rows:
        return []
    return [Text(word(key, language), style="bold"), *(_indent(row) for row in rows), Text()]


def _indent(row: RenderableType) -> RenderableType:
    return Padding(row, (0, 0, 0, 2), expand=False)
