"""A diagnosis as the Post-mortem page shows it, and the choice of one of several jobs."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
import streamlit as st

from stallwatch_dashboard import formats, verdict
from stallwatch_dashboard.charts import by_step
from stallwatch_dashboard.data.source import shared
from stallwatch_dashboard.pages.board import draw_board
from stallwatch_dashboard.pages.common import (
    catalogue,
    draw_verdict,
    language,
    look,
    offer_download,
    reader,
    render,
    say,
)
from stallwatch_dashboard.safetext import cell, markdown, verbatim
from stallwatch_logs.inputs import InputProblem
from stallwatch_rules.records import Diagnosis, JobTold, Place
from stallwatch_rules.report import to_json, to_markdown
from stallwatch_rules.report.html import to_html
from stallwatch_rules.report.jobtable import shown_name, table
from stallwatch_rules.report.phrases import environment_line, new_line_where, progress_line, stats_line, word
from stallwatch_rules.text.digest import fold_ranks

TOGETHER = ""  #: the choice of all files as one run: no job is called so
CHOICE = "which_job"  #: where the session keeps it

_ROW = 35  # pixels, as Streamlit draws them
_MOST_ROWS = 6


def draw_jobs(jobs: Sequence[JobTold]) -> None:
    """The table of all, the newest first."""
    told = table(jobs, language(), len(jobs))
    columns = [[cell(row.cells[number]) for row in told.rows] for number in range(len(told.heads))]
    st.dataframe(
        pd.DataFrame(dict(zip(told.heads, columns, strict=True))),
        hide_index=True,
        height=_ROW * (1 + min(len(told.rows), _MOST_ROWS)) + 2,  # it scrolls: the verdict stands below
    )


def choose_job(jobs: Sequence[JobTold]) -> str:
    """The name of the job whose report is asked for; `TOGETHER` for all of them as one run."""
    names = {job.name: f"{shown_name(job, language())} · {render(job.badge)}" for job in jobs}
    reported = next((number for number, job in enumerate(jobs) if job.reported), 0)
    chosen: str | None = st.selectbox(
        say("which_job"),
        [*names, TOGETHER],
        index=reported,
        format_func=lambda name: cell(names.get(name, say("all_as_one_run"))),
        help=say("jobs_by_name"),
        key=CHOICE,
    )
    return jobs[reported].name if chosen is None else chosen


def _findings(found: Diagnosis) -> None:
    st.dataframe(
        {
            say("rule"): [f.rule for f in found.findings],
            say("role"): [say(f"role_{f.role}") for f in found.findings],
            say("harm"): [say(f"harm_{f.harm}") for f in found.findings],
            say("count"): [f.count for f in found.findings],
            say("ranks"): [fold_ranks(f.ranks) for f in found.findings],
            say("first"): [cell(_place(f.first)) for f in found.findings],
            say("note"): [cell(render(f.note)) for f in found.findings],
        },
        hide_index=True,
    )


def _place(place: Place) -> str:
    return f"{place.file}:{place.line}"


def _unknown(found: Diagnosis) -> None:
    for one in found.unknown:
        facts = [_place(one.first)]
        if one.ranks:
            facts.append(f"{say('ranks')} {fold_ranks(one.ranks)}")
        if one.count > 1:
            facts.append(f"× {one.count}")
        st.caption(markdown(" · ".join(facts)))
        st.code(
            verbatim("\n".join([*one.frames, f"{one.exception}: {one.message}"])),
            language=None,
            wrap_lines=True,
        )


def _new_lines(found: Diagnosis) -> None:
    """Lines that the run, or the healthy one it was compared with, had not said before."""
    st.markdown(f"#### {word('new-lines', language())}")
    for one in found.new_lines:
        st.caption(markdown(new_line_where(one, language())))
        st.code(verbatim(one.exemplar), language=None, wrap_lines=True)


def _facts(found: Diagnosis, problems: list[InputProblem]) -> None:
    left, right = st.columns(2, gap="medium")
    with left:
        st.markdown(f"#### {say('progress')}")
        st.text(verbatim(progress_line(found, language())) or formats.NOTHING)
    with right:
        st.markdown(f"#### {say('environment')}")
        st.text(verbatim(environment_line(found)) or formats.NOTHING)
    known = {str(problem) for problem in problems}
    if notes := [text for note in found.notes if (text := render(note)) not in known]:
        st.markdown(f"#### {say('notes')}")
        st.text(verbatim("\n".join(notes)))
    st.caption(markdown(stats_line(found, language())))


def draw_problems(problems: list[InputProblem]) -> None:
    if problems:
        lines = [f"- {markdown(str(problem))}" for problem in problems]
        st.warning("\n".join([f"**{say('not_read')}**", *lines]), icon=":material/warning:")


def draw_report(found: Diagnosis, problems: list[InputProblem], lines: str) -> None:
    """All of it, the verdict first; `lines` stand around the evidence."""
    pages = catalogue(shared().settings.rules).pages
    draw_verdict(verdict.of_diagnosis(found, pages, reader()))
    draw_problems(problems)
    if lines:
        st.markdown(f"#### {say('in_context')}")
        st.code(verbatim(lines), language=None)
    if found.digest:
        st.markdown(f"#### {word('digest', language())}")
        st.text(verbatim("\n".join(render(line) for line in found.digest)))
    if drawn := by_step.of_diagnosis(found, look(), say):
        st.markdown(f"#### {say('in_numbers')}")
        draw_board(drawn, key="board-report", say=say)
    if found.unknown:
        st.markdown(f"#### {say('unknown')}")
        _unknown(found)
    if found.new_lines:
        _new_lines(found)
    if found.findings:
        st.markdown(f"#### {say('findings')}")
        _findings(found)
    _facts(found, problems)
    with st.container(horizontal=True):
        offer_download(
            "html", to_html(found, language(), context=lines), "stallwatch-report.html", "text/html"
        )
        offer_download("markdown", to_markdown(found, language()), "stallwatch-report.md", "text/markdown")
        offer_download("json", to_json(found, language()), "stallwatch-report.json", "application/json")
