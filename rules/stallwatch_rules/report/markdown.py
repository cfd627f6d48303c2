"""The report for an issue tracker: Markdown without HTML, log text only inside code fences."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from stallwatch_rules.locale import render
from stallwatch_rules.records import Diagnosis, JobTold, NewLines, Primary, UnknownException
from stallwatch_rules.report import phrases
from stallwatch_rules.report.clean import clean_diagnosis
from stallwatch_rules.report.phrases import word
from stallwatch_rules.text.lazy import lazy

_BACKTICKS = lazy(r"`+")
_MARKUP = lazy(r"([\\`*_\[\]<>|#~@])")


def to_markdown(diagnosis: Diagnosis, language: str = "en", jobs: Sequence[JobTold] = ()) -> str:
    """The diagnosis as Markdown; with a table on top where it is that of one of several `jobs`."""
    diagnosis = clean_diagnosis(diagnosis)
    blocks = _jobs(jobs, language) if jobs else []
    badge, headline = (
        render(one, language) for one in (phrases.badge(diagnosis), phrases.headline(diagnosis))
    )
    blocks += [f"## {badge}: {plain(headline)}"]
    if diagnosis.primary is not None:
        blocks += _primary(diagnosis, diagnosis.primary, language)
    if diagnosis.digest:
        blocks.append(f"### {word('digest', language)}")
        blocks.append("\n".join(f"- {plain(render(line, language))}" for line in diagnosis.digest))
    others = phrases.other_findings(diagnosis)
    if others:
        blocks.append(f"### {word('findings', language)}")
        rows = []
        for finding in others:
            about = phrases.finding_line(finding, diagnosis.primary, language)
            rows.append(
                f"- {code(finding.rule)}: {plain(render(finding.note or finding.title, language))} ({about})"
            )
        blocks.append("\n".join(rows))
    if diagnosis.unknown:
        blocks.append(f"### {word('unknown', language)}")
        blocks += [_unknown(one, language) for one in diagnosis.unknown]
    if diagnosis.new_lines:
        blocks.append(f"### {word('new-lines', language)}")
        blocks.append(fence(line for one in diagnosis.new_lines for line in _new(one, language)))
    blocks += _facts(diagnosis, language)
    return "\n\n".join(blocks) + "\n"


def _jobs(jobs: Sequence[JobTold], language: str) -> list[str]:
    from stallwatch_rules.report import jobtable  # seldom wanted

    told = jobtable.table(jobs, language)
    rows = [
        told.heads,
        ["---"] * len(told.heads),
        *(
            [f"**{plain(cell)}**" if one.reported and cell else plain(cell) for cell in one.cells]
            for one in told.rows
        ),
    ]
    blocks = [f"## {word('jobs', language)}", "\n".join(f"| {' | '.join(row)} |" for row in rows)]
    return [*blocks, *(plain(line) for line in (told.more, told.summary) if line)]


def _primary(diagnosis: Diagnosis, primary: Primary, language: str) -> Iterable[str]:
    about = [f"{word('rule', language)} {code(primary.rule)}", phrases.certainty(primary, language)]
    place = phrases.where(diagnosis, language)
    if place:
        about.append(plain(place))
    yield " · ".join(about)
    note = phrases.primary_note(diagnosis)
    if note:
        yield plain(render(note, language))
    if primary.evidence:
        yield f"### {word('evidence', language)}"
        yield fence(render(line, language) for line in primary.evidence)
    if primary.why:
        yield f"### {word('why', language)}"
        yield render(primary.why, language)  # the rule page's own Markdown
    if primary.fixes:
        yield f"### {word('fixes', language)}"
        yield "\n".join(
            _numbered(number, render(fix, language)) for number, fix in enumerate(primary.fixes, 1)
        )


def _numbered(number: int, fix: str) -> str:
    first, *rest = fix.splitlines() or [""]
    return "\n".join([f"{number}. {first}", *("   " + line if line else "" for line in rest)])


def _unknown(unknown: UnknownException, language: str) -> str:
    lines = [phrases.exception_line(unknown, language)]
    if unknown.root:
        lines.append(f"({word('root', language)}: {unknown.root})")
    lines += [f"  {frame}" for frame in unknown.frames]
    near = phrases.nearest_line(unknown, language)
    told = f"{plain(phrases.exception_where(unknown, language))}\n\n{fence(lines)}"
    return f"{told}\n\n{plain(near)}" if near else told


def _new(new: NewLines, language: str) -> tuple[str, str]:
    return new.exemplar, f"    {phrases.new_line_where(new, language)}"


def _facts(diagnosis: Diagnosis, language: str) -> Iterable[str]:
    rows = []
    for key, line in (
        ("progress", phrases.progress_line(diagnosis, language)),
        ("environment", phrases.environment_line(diagnosis)),
        ("ending", render(diagnosis.ending, language)),
    ):
        if line:
            rows.append(f"- {word(key, language)}: {plain(line)}")
    rows += [f"- {plain(render(note, language))}" for note in diagnosis.notes]
    rows.append(f"- {phrases.stats_line(diagnosis, language)}")
    yield "\n".join(rows)


def fence(lines: Iterable[str]) -> str:
    """A code block whose fence is longer than any run of backticks inside it."""
    text = "\n".join(lines)
    ticks = "`" * max(3, 1 + max((len(run) for run in _BACKTICKS.findall(text)), default=0))
    return f"{ticks}text\n{text}\n{ticks}"


def code(text: str) -> str:
    """Inline code, whatever backticks the text has."""
    ticks = "`" * (1 + max((len(run) for run in _BACKTICKS.findall(text)), default=0))
    pad = " " if "`" in text else ""
    return f"{ticks}{pad}{text}{pad}{ticks}"


def plain(text: str) -> str:
    """Text that Markdown leaves as it is: no emphasis, no link, no HTML, no mention."""
    return _MARKUP.sub(r"\\\1", text.replace("\n", " "))
