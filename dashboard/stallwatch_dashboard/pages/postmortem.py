"""Upload the logs of a dead run: the verdict first, then cause, fixes, evidence and everything else found."""

from __future__ import annotations

import time
from typing import Any

import pandas as pd
import streamlit as st

from stallwatch_dashboard import formats, theme, verdict
from stallwatch_dashboard.charts import series
from stallwatch_dashboard.pages.board import draw_board
from stallwatch_dashboard.pages.common import catalogue, head, language, look, say, zone
from stallwatch_dashboard.pages.headline import draw_verdict
from stallwatch_dashboard.pages.signin import may_operate, offer_uploads
from stallwatch_dashboard.reports import Kept, Reports
from stallwatch_dashboard.safetext import cell, markdown, verbatim
from stallwatch_dashboard.sources.embedded import shared
from stallwatch_dashboard.uploads.reading import ReadingFailed, read_uploads, too_much
from stallwatch_exporter.files.inputs import InputProblem
from stallwatch_rules.records import Diagnosis, Place
from stallwatch_rules.report import to_json, to_markdown
from stallwatch_rules.report.html import to_html
from stallwatch_rules.report.phrases import environment_line, progress_line, stats_line
from stallwatch_rules.text.digest import fold_ranks

_SHOWN_REPORTS = 20


def _diagnose(files: list[Any]) -> tuple[Diagnosis, list[InputProblem], str]:
    told = formats.byte_size(sum(file.size for file in files))
    bar = st.progress(0.0, say("reading", formats.byte_size(0), told))
    drawn = 0.0

    def progress(done: int, whole: int) -> None:
        nonlocal drawn
        if time.monotonic() - drawn > 0.1:
            drawn = time.monotonic()
            part = min(1.0, done / whole) if whole else 0.0
            bar.progress(part, say("reading", formats.byte_size(done), formats.byte_size(whole)))

    try:
        answer = read_uploads(
            [(file.name, file) for file in files],
            shared().settings,
            language(),
            progress,
            lambda: bar.progress(0.0, say("upload_waits")),
        )
    finally:
        bar.empty()
    return answer.found, answer.problems, answer.context


def _findings(found: Diagnosis) -> None:
    st.dataframe(
        pd.DataFrame(
            {
                say("rule"): [f.rule for f in found.findings],
                say("role"): [say(f"role_{f.role}") for f in found.findings],
                say("harm"): [say(f"harm_{f.harm}") for f in found.findings],
                say("count"): [f.count for f in found.findings],
                say("ranks"): [fold_ranks(f.ranks) for f in found.findings],
                say("first"): [cell(_place(f.first)) for f in found.findings],
                say("note"): [cell(f.note) for f in found.findings],
            }
        ),
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


def _facts(found: Diagnosis, problems: list[InputProblem]) -> None:
    left, right = st.columns(2, gap="medium")
    with left:
        st.markdown(f"#### {say('progress')}")
        st.text(verbatim(progress_line(found, language())) or formats.NOTHING)
    with right:
        st.markdown(f"#### {say('environment')}")
        st.text(verbatim(environment_line(found)) or formats.NOTHING)
    if notes := [note for note in found.notes if note not in map(str, problems)]:
        st.markdown(f"#### {say('notes')}")
        st.text(verbatim("\n".join(notes)))
    st.caption(markdown(stats_line(found, language())))


def _problems(problems: list[InputProblem]) -> None:
    if problems:
        lines = [f"- {markdown(str(problem))}" for problem in problems]
        st.warning("\n".join([f"**{say('not_read')}**", *lines]), icon=":material/warning:")


def _report(found: Diagnosis, problems: list[InputProblem], lines: str) -> None:
    pages = catalogue(shared().settings.rules).pages
    draw_verdict(verdict.of_diagnosis(found, pages, language=language(), say=say))
    _problems(problems)
    if lines:
        st.markdown(f"#### {say('in_context')}")
        st.code(verbatim(lines), language=None)
    if drawn := series.charts(found, look(), say):
        st.markdown(f"#### {say('in_numbers')}")
        draw_board(drawn, key="board-report", say=say)
    if found.unknown:
        st.markdown(f"#### {say('unknown')}")
        _unknown(found)
    if found.findings:
        st.markdown(f"#### {say('findings')}")
        _findings(found)
    _facts(found, problems)
    with st.container(horizontal=True):
        st.download_button(
            say("download_html"),
            to_html(found, language(), context=lines),
            "stallwatch-report.html",
            "text/html",
            on_click="ignore",
            icon=":material/download:",
        )
        st.download_button(
            say("download_markdown"),
            to_markdown(found, language()),
            "stallwatch-report.md",
            "text/markdown",
            on_click="ignore",
            icon=":material/download:",
        )
        st.download_button(
            say("download_json"),
            to_json(found),
            "stallwatch-report.json",
            "application/json",
            on_click="ignore",
            icon=":material/download:",
        )


def _kept(reports: Reports) -> None:
    """What was kept: open it, or delete it."""
    found, operator = reports.all(), may_operate()
    if not found:
        return
    st.markdown(f"#### {say('kept_reports')}")
    for kept in found[:_SHOWN_REPORTS]:
        primary = kept.diagnosis.primary
        title = primary.title if primary is not None else say(f"verdict_{kept.diagnosis.verdict}")
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


def _opened(kept: Kept) -> None:
    """A kept report by its link."""
    with st.container(horizontal=True, vertical_alignment="center"):
        if st.button(say("close_report"), icon=":material/arrow_back:", key="close_report"):
            del st.query_params["report"]
            st.rerun()
        names = ", ".join(kept.names)
        st.caption(markdown(say("kept_at", formats.clock(kept.at, zone()), names)))
    _report(kept.diagnosis, [], kept.context)


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
    st.session_state.pop("report", None)
    _kept(_reports)
else:
    if _excess := too_much([(file.name, file.size) for file in _files], shared().settings.max_uploads_mb):
        _problems([_excess])
        st.stop()
    # Reruns for other reasons (a click on a table, the language of a heading) must not read the files again.
    _asked = (language(), *((file.file_id, file.size) for file in _files))
    if st.session_state.get("report", (None,))[0] != _asked:
        try:
            st.session_state["report"] = (_asked, _diagnose(_files))
        except (ReadingFailed, OSError) as _error:
            st.session_state.pop("report", None)
            st.error(markdown(say("upload_failed", _error)), icon=":material/error:")
            st.stop()
    _found, _unread, _lines = st.session_state["report"][1]
    _keep(_reports, _found, [file.name for file in _files], _lines)
    _report(_found, _unread, _lines)
