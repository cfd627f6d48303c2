"""Diagnose the uploaded logs of an ended run. Draw the verdict, cause, fixes, evidence, and findings."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import pandas as pd
import streamlit as st

from stallwatch_dashboard import formats, theme, verdict
from stallwatch_dashboard.charts import by_step
from stallwatch_dashboard.data.source import shared
from stallwatch_dashboard.pages.board import draw_board
from stallwatch_dashboard.pages.common import (
    catalogue,
    draw_verdict,
    head,
    language,
    look,
    offer_download,
    reader,
    render,
    say,
    zone,
)
from stallwatch_dashboard.pages.signin import may_operate, offer_uploads
from stallwatch_dashboard.safetext import cell, markdown, verbatim
from stallwatch_dashboard.uploads.reader import Answer
from stallwatch_dashboard.uploads.reading import ReadingFailed, read_uploads, too_much
from stallwatch_dashboard.uploads.reports import Reports, SavedReport
from stallwatch_logs.inputs import InputProblem
from stallwatch_rules.messages import has
from stallwatch_rules.records import TRAINS, Diagnosis, JobSummary, Place
from stallwatch_rules.report.html import to_html
from stallwatch_rules.report.jobtable import Table, shown_name, starts_table, table
from stallwatch_rules.report.json import to_json
from stallwatch_rules.report.markdown import to_markdown
from stallwatch_rules.report.phrases import (
    DOUBTS,
    counted_times,
    environment_line,
    exception_line,
    marked_frames,
    new_line_where,
    progress_line,
    stats_line,
    word,
)
from stallwatch_rules.text.digest import fold_ranks

_TOGETHER = ""  #: the option to read all files as one run; no job has an empty name
_CHOICE = "which_job"  #: session key of the selected job
_ROW_PIXELS = 35  #: height of a row in a Streamlit table
_MOST_ROWS = 6
_SHOWN_REPORTS = 20
_KNOWN_REPORTS = 8  #: maximum number of cached reports of the jobs in one upload


def _draw(shown: Table) -> None:
    st.dataframe(
        pd.DataFrame([[cell(text) for text in row.cells] for row in shown.rows], columns=shown.heads),
        hide_index=True,
        height=_ROW_PIXELS * (1 + min(len(shown.rows), _MOST_ROWS)) + 2,  # a longer table scrolls
    )


def _choose_job(jobs: Sequence[JobSummary]) -> str:
    """Return the name of the job that the user selected, or `_TOGETHER` to diagnose all files as one run."""
    names = {job.name: f"{shown_name(job, language())} · {render(job.badge)}" for job in jobs}
    reported = next((number for number, job in enumerate(jobs) if job.reported), 0)
    chosen: str | None = st.selectbox(
        say("which_job"),
        [*names, _TOGETHER],
        index=reported,
        format_func=lambda name: cell(names.get(name, say("all_as_one_run"))),
        help=say("jobs_by_name"),
        key=_CHOICE,
    )
    return jobs[reported].name if chosen is None else chosen


def _findings(found: Diagnosis) -> None:
    # If all counts are exact, they are shown as numbers, so that users can sort them.
    bounds = any(f.at_least for f in found.findings)
    st.dataframe(
        {
            say("rule"): [f.rule for f in found.findings],
            say("role"): [say(f"role_{f.role}") for f in found.findings],
            say("harm"): [say(f"harm_{f.harm}") for f in found.findings],
            say("count"): [counted_times(f) if bounds else f.count for f in found.findings],
            say("ranks"): [fold_ranks(f.ranks) for f in found.findings],
            say("first"): [cell(_place(f.first)) for f in found.findings],
            say("note"): [cell(render(f.note)) for f in found.findings],
        },
        hide_index=True,
    )


def _place(place: Place) -> str:
    return f"{place.file}:{place.line}"


def _unknown(found: Diagnosis) -> None:
    for failure in found.unknown:
        facts = [_place(failure.first)]
        if failure.ranks:
            facts.append(f"{say('ranks')} {fold_ranks(failure.ranks)}")
        if failure.count > 1:
            facts.append(f"× {failure.count}")
        st.caption(markdown(" · ".join(facts)))
        st.code(
            verbatim("\n".join([*marked_frames(failure.frames), exception_line(failure, language())])),
            language=None,
            wrap_lines=True,
        )


def _new_lines(found: Diagnosis) -> None:
    """Draw the lines that first occur near the end of the run, or that do not occur in a healthy run."""
    st.markdown(f"#### {word('new-lines', language())}")
    for line in found.new_lines:
        st.caption(markdown(new_line_where(line, language())))
        st.code(verbatim(line.exemplar), language=None, wrap_lines=True)


def _facts(found: Diagnosis, problems: list[InputProblem]) -> None:
    left, right = st.columns(2, gap="medium")
    with left:
        st.markdown(f"#### {say('progress')}")
        st.text(verbatim(progress_line(found, language())) or formats.NOTHING)
    with right:
        st.markdown(f"#### {say('environment')}")
        st.text(verbatim(environment_line(found)) or formats.NOTHING)
    known = {str(problem) for problem in problems}
    noted = (note for note in found.notes if not has(note, *DOUBTS))
    if notes := [text for note in noted if (text := render(note)) not in known]:
        st.markdown(f"#### {say('notes')}")
        st.text(verbatim("\n".join(notes)))
    st.caption(markdown(stats_line(found, language())))


def _draw_problems(problems: list[InputProblem]) -> None:
    if problems:
        lines = [f"- {markdown(str(problem))}" for problem in problems]
        st.warning("\n".join([f"**{say('not_read')}**", *lines]), icon=":material/warning:")


def _draw_report(found: Diagnosis, problems: list[InputProblem], lines: str) -> None:
    """Draw a complete report, starting with the verdict. `lines` are the log lines around the evidence."""
    pages = catalogue(shared().settings.rules).pages
    draw_verdict(verdict.of_diagnosis(found, pages, reader()))
    for doubt in (note for note in found.notes if has(note, *DOUBTS)):
        st.warning(markdown(render(doubt)), icon=":material/warning:")
    _draw_problems(problems)
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
    if found.starts:
        shown = starts_table(found.starts, language(), len(found.starts))
        st.markdown(f"#### {word('starts', language())}")
        st.text(verbatim(shown.summary))
        _draw(shown)
    _facts(found, problems)
    with st.container(horizontal=True):
        offer_download(
            "html", to_html(found, language(), context=lines), "stallwatch-report.html", "text/html"
        )
        offer_download("markdown", to_markdown(found, language()), "stallwatch-report.md", "text/markdown")
        offer_download("json", to_json(found, language()), "stallwatch-report.json", "application/json")


def _diagnose(files: Sequence[Any], healthy: Sequence[Any], job: str = "", together: bool = False) -> Answer:
    total = formats.byte_size(sum(file.size for file in files))
    bar = st.progress(0.0, say("reading", formats.byte_size(0), total))
    drawn = 0.0

    def progress(done: int, whole: int) -> None:
        nonlocal drawn
        if time.monotonic() - drawn > 0.1:
            drawn = time.monotonic()
            part = min(1.0, done / whole) if whole else 0.0
            bar.progress(part, say("reading", formats.byte_size(done), formats.byte_size(whole)))

    try:
        return read_uploads(
            [(file.name, file) for file in files],
            shared().settings,
            progress,
            lambda: bar.progress(0.0, say("upload_waits")),
            healthy=[(file.name, file) for file in healthy],
            job=job,
            together=together,
        )
    finally:
        bar.empty()


def _report_of(job: str | None, files: Sequence[Any], healthy: Sequence[Any]) -> Answer:
    """Return the report of the selected job, or the default report. Read the files if no report is cached."""
    known: dict[str | None, Answer] = st.session_state.setdefault("reports", {})
    if job not in known:
        try:
            answer = _diagnose(files, healthy, job=job or "", together=job == _TOGETHER)
        except (ReadingFailed, OSError) as error:
            st.error(markdown(say("upload_failed", error)), icon=":material/error:")
            st.stop()
        if len(known) > _KNOWN_REPORTS:
            del known[next(iter(known))]
        known[job] = answer
    known[job] = known.pop(job)  # the most recently viewed report is deleted last
    return known[job]


def _compared(answer: Answer) -> None:
    """Show a note if the run used for comparison is not healthy, or if there are no new lines."""
    if not answer.healthy:
        return
    if answer.healthy not in TRAINS:
        st.info(say("not_healthy", say(f"verdict_{answer.healthy}")), icon=":material/info:")
    # Stallwatch searches for new lines only in a run that has problems.
    if not answer.found.new_lines and answer.found.in_trouble:
        st.caption(say("nothing_new"))


def _kept(reports: Reports) -> None:
    found, operator = reports.all(), may_operate()
    if not found:
        return
    st.markdown(f"#### {say('kept_reports')}")
    if len(found) > _SHOWN_REPORTS and not st.toggle(say("more_reports", len(found)), key="more_reports"):
        found = found[:_SHOWN_REPORTS]
    for kept in found:
        primary = kept.diagnosis.primary
        title = render(primary.title) if primary is not None else say(f"verdict_{kept.diagnosis.verdict}")
        when = formats.clock(kept.at, zone())
        with st.container(horizontal=True, vertical_alignment="center"):
            if st.button(say("open_report"), key=f"open-{kept.id}", icon=":material/open_in_new:"):
                st.query_params["report"] = kept.id
                st.rerun()
            if operator and st.button(
                say("delete_report"), key=f"delete-{kept.id}", icon=":material/delete:"
            ):
                reports.delete(kept.id)
                st.rerun()
            st.markdown(f"{markdown(title)} · {markdown(when)} · {markdown(', '.join(kept.names[:3]))}")


def _keep(reports: Reports, found: Diagnosis, names: list[str], lines: str) -> None:
    if not may_operate() or not st.button(
        say("keep_report"), icon=":material/bookmark_add:", key="keep_report"
    ):
        return
    try:
        kept = reports.keep(found, names, language(), lines)
    except OSError as error:
        st.error(markdown(say("not_kept", error.strerror or error)), icon=":material/error:")
        return
    st.query_params["report"] = kept.id
    st.rerun()


def _opened(kept: SavedReport) -> None:
    with st.container(horizontal=True, vertical_alignment="center"):
        if st.button(say("close_report"), icon=":material/arrow_back:", key="close_report"):
            del st.query_params["report"]
            st.rerun()
        names = ", ".join(kept.names)
        st.caption(markdown(say("kept_at", formats.clock(kept.at, zone()), names)))
    _draw_report(kept.diagnosis, [], kept.context)


head(say("postmortem"))
_reports = Reports(shared().settings.home)
if (_wanted := st.query_params.get("report")) is not None:
    if (_open := _reports.load(_wanted)) is not None:
        _opened(_open)
        st.stop()
    st.info(markdown(say("no_such_report", _wanted)), icon=":material/search_off:")
_files = None
if may_operate():
    offer_uploads()
    if language() == "zh":
        st.html(
            theme.uploader(
                say("upload_button"),
                say("upload_most", formats.byte_size(shared().settings.max_upload_mb * 2**20)),
            )
        )
    _files = st.file_uploader(say("upload"), accept_multiple_files=True, key="uploads")
else:
    st.info(say("operators_only"), icon=":material/visibility:")
if not _files:
    st.caption(say("upload_next"))
    st.caption(say("upload_or"))
    st.code("stallwatch diagnose logs/", language=None)
    st.session_state.pop("reports", None)
    _kept(_reports)
else:
    # The uploaders are side by side, so that the verdict is near the top of the page.
    _left, _right = st.columns([1, 3], vertical_alignment="top")
    with _right, st.expander(say("compare_healthy"), icon=":material/compare_arrows:"):
        _healthy = st.file_uploader(say("healthy_logs"), accept_multiple_files=True, key="healthy") or []
    if _excess := too_much(
        [(file.name, file.size) for file in (*_files, *_healthy)], shared().settings.max_uploads_mb
    ):
        _draw_problems([_excess])
        st.stop()
    # A rerun for a different reason, such as a click on a table, must not reread the files. The files are
    # reread only if the files or the language change.
    _requested = (language(), len(_files), *((file.file_id, file.size) for file in (*_files, *_healthy)))
    if st.session_state.get("asked") != _requested:
        st.session_state["asked"] = _requested
        for _old in ("reports", _CHOICE):
            st.session_state.pop(_old, None)
    _answer = _report_of(None, _files, _healthy)
    _names = [file.name for file in _files]
    if _jobs := _answer.jobs:
        with _right:
            _draw(table(_jobs, language(), len(_jobs)))
        with _left:
            _job = _choose_job(_jobs)
        _names = next((job.files for job in _jobs if job.name == _job), _names)
        if not any(job.reported and job.name == _job for job in _jobs):
            _answer = _report_of(_job, _files, _healthy)
    with _left:
        _keep(_reports, _answer.found, _names, _answer.context)
    _compared(_answer)
    _draw_report(_answer.found, _answer.problems, _answer.context)
