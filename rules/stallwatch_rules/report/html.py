"""Write a report that can be shared: one HTML file with charts, without scripts and external content."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from jinja2 import Environment, PackageLoader
from markdown_it import MarkdownIt
from markupsafe import Markup

from stallwatch_rules.locale import render
from stallwatch_rules.records import Diagnosis, JobSummary, Series, Start
from stallwatch_rules.report import phrases
from stallwatch_rules.report.phrases import word
from stallwatch_rules.report.svg import line_chart

if TYPE_CHECKING:
    from stallwatch_rules.report.jobtable import Table

_CHARTS = ("loss", "grad_norm", "learning_rate", "loss_scale", "step_seconds")


def to_html(
    diagnosis: Diagnosis, language: str = "en", *, context: str = "", jobs: Sequence[JobSummary] = ()
) -> str:
    """Return the diagnosis as an HTML page. If available, `context` contains the lines around the evidence.

    If the diagnosis is that of one of several `jobs`, a table of them comes first.
    """
    shown = phrases.shown(diagnosis, language)
    diagnosis, primary = shown.diagnosis, shown.diagnosis.primary
    about = [primary.rule, shown.certainty, shown.where] if primary is not None else []
    unknown = [
        (
            phrases.exception_where(one, language),
            [phrases.exception_line(one, language), *phrases.marked_frames(one.frames)],
            [text for text in (render(one.advice), phrases.nearest_line(one, language)) if text],
        )
        for one in diagnosis.unknown
    ]
    return (
        _environment()
        .get_template("page.html.jinja")
        .render(
            language="zh" if language.startswith("zh") else "en",
            shown=shown,
            diagnosis=diagnosis,
            primary=primary,
            about=[part for part in about if part],
            context=context,
            jobs=_jobs(jobs, language),
            starts=_starts(diagnosis.starts, language),
            charts=list(_charts(diagnosis, language)),
            unknown=unknown,
            new_lines=[(one.exemplar, phrases.new_line_where(one, language)) for one in diagnosis.new_lines],
            word=functools.partial(word, language=language),
            prose=_prose,
        )
    )


def _jobs(jobs: Sequence[JobSummary], language: str) -> Table | None:
    if not jobs:
        return None
    from stallwatch_rules.report import jobtable  # imported here, because it is rarely needed

    return jobtable.table(jobs, language, len(jobs))


def _starts(starts: Sequence[Start], language: str) -> Table | None:
    if not starts:
        return None
    from stallwatch_rules.report import jobtable  # imported here, because it is rarely needed

    return jobtable.starts_table(starts, language, len(starts))


def _charts(diagnosis: Diagnosis, language: str) -> Iterator[tuple[str, Markup]]:
    mark = diagnosis.primary.step if diagnosis.primary is not None else None
    for name in _CHARTS:
        series = [one for one in diagnosis.series if one.name == name]
        title = _title(name, series, language)
        by = series[0].by if series else "step"
        if drawn := line_chart(series, title, word(by, language), mark if by == "step" else None):
            yield title, Markup(drawn)  # safe: consists of numbers and escaped words


def _title(name: str, series: list[Series], language: str) -> str:
    """Return the title of a chart. It names the ranks whose values are drawn, if these are known."""
    ranks = sorted({one.rank for one in series if one.rank is not None})
    shown_ranks = phrases.ranks_of(ranks, language)
    return f"{word(name, language)} ({shown_ranks})" if shown_ranks else word(name, language)


@functools.lru_cache(maxsize=1)
def _environment() -> Environment:
    return Environment(
        loader=PackageLoader("stallwatch_rules.report", "."), autoescape=True, trim_blocks=True
    )


@functools.lru_cache(maxsize=1)
def _markdown() -> MarkdownIt:
    # A rule page may contain text of a log, so HTML and content that a browser would fetch are disabled.
    return MarkdownIt("commonmark", {"html": False}).disable("image")


def _prose(text: str) -> Markup:
    return Markup(_markdown().render(text))  # HTML is disabled in the renderer
