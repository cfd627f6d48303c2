"""Write a report that can be shared: one HTML file with charts and without scripts or external content."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence

from jinja2 import Environment, PackageLoader
from markdown_it import MarkdownIt
from markupsafe import Markup

from stallwatch_rules.locale import render
from stallwatch_rules.records import Diagnosis, JobSummary
from stallwatch_rules.report import phrases
from stallwatch_rules.report.jobtable import starts_table, table
from stallwatch_rules.report.phrases import word
from stallwatch_rules.report.svg import line_chart

_CHARTS = ("loss", "grad_norm", "learning_rate", "loss_scale", "step_seconds")
_ENVIRONMENT = Environment(
    loader=PackageLoader("stallwatch_rules.report", "."), autoescape=True, trim_blocks=True
)
# A rule page can contain text from a log, so HTML and content that a browser would fetch are disabled.
_MARKDOWN = MarkdownIt("commonmark", {"html": False}).disable("image")


def to_html(
    diagnosis: Diagnosis, language: str = "en", *, context: str = "", jobs: Sequence[JobSummary] = ()
) -> str:
    """Return the diagnosis as an HTML page.

    `context` contains the lines of the log around the evidence, if they are available. If the run is one of
    several `jobs`, a table of the jobs comes first.
    """
    shown = phrases.shown(diagnosis, language)
    diagnosis, primary = shown.diagnosis, shown.diagnosis.primary
    starts = diagnosis.starts
    about = [primary.rule, shown.certainty, shown.where] if primary is not None else []
    unknown = [
        (
            phrases.exception_where(exception, language),
            [phrases.exception_line(exception, language), *phrases.marked_frames(exception.frames)],
            [text for text in (render(exception.advice), phrases.nearest_line(exception, language)) if text],
        )
        for exception in diagnosis.unknown
    ]
    return _ENVIRONMENT.get_template("page.html.jinja").render(
        language="zh" if language.startswith("zh") else "en",
        shown=shown,
        diagnosis=diagnosis,
        primary=primary,
        about=[part for part in about if part],
        context=context,
        jobs=table(jobs, language, len(jobs)) if jobs else None,
        starts=starts_table(starts, language, len(starts)) if starts else None,
        charts=list(_charts(diagnosis, language)),
        unknown=unknown,
        new_lines=[
            (new_line.exemplar, phrases.new_line_where(new_line, language))
            for new_line in diagnosis.new_lines
        ],
        word=functools.partial(word, language=language),
        prose=lambda text: Markup(_MARKDOWN.render(text)),  # safe: HTML is disabled in the renderer
    )


def _charts(diagnosis: Diagnosis, language: str) -> Iterator[tuple[str, Markup]]:
    mark = diagnosis.primary.step if diagnosis.primary is not None else None
    for name in _CHARTS:
        series = [curve for curve in diagnosis.series if curve.name == name]
        ranks = phrases.ranks_of(sorted({curve.rank for curve in series if curve.rank is not None}), language)
        title = f"{word(name, language)} ({ranks})" if ranks else word(name, language)
        by = series[0].by if series else "step"
        if drawn := line_chart(series, title, word(by, language), mark if by == "step" else None):
            yield title, Markup(drawn)  # safe: consists of numbers and escaped words
