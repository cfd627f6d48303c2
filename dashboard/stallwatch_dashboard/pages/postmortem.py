"""Upload the logs of a dead run: the verdict first, then cause, fixes, evidence and everything else found."""

from __future__ import annotations

import time
from typing import Any

import pandas as pd
import streamlit as st

from stallwatch_dashboard import context, formats, verdict
from stallwatch_dashboard.pages.common import catalogue, head, language, say
from stallwatch_dashboard.pages.headline import draw_verdict
from stallwatch_dashboard.safetext import markdown
from stallwatch_dashboard.sources.embedded import shared
from stallwatch_exporter.postmortem import InputProblem, diagnose_streams
from stallwatch_rules.digest import fold_ranks
from stallwatch_rules.records import Diagnosis, Place
from stallwatch_rules.report import to_json, to_markdown
from stallwatch_rules.report.phrases import environment_line, progress_line, stats_line


def _diagnose(files: list[Any]) -> tuple[Diagnosis, list[InputProblem], str]:
    bar = st.progress(0.0, say("reading", formats.byte_size(0), formats.byte_size(0)))
    drawn = 0.0

    def progress(done: int, whole: int) -> None:
        nonlocal drawn
        if time.monotonic() - drawn > 0.1:
            drawn = time.monotonic()
            part = min(1.0, done / whole) if whole else 0.0
            bar.progress(part, say("reading", formats.byte_size(done), formats.byte_size(whole)))

    for file in files:
        file.seek(0)
    streams = [(file.name, file) for file in files]
    found, problems = diagnose_streams(
        streams,
        catalogue=catalogue(shared().settings.rules),
        language=language(),
        progress=progress,
    )
    bar.empty()
    primary = found.primary
    return found, problems, context.around(streams, primary.file, primary.line) if primary else ""


def _findings(found: Diagnosis) -> None:
    st.dataframe(
        pd.DataFrame(
            {
                say("rule"): [f.rule for f in found.findings],
                say("role"): [say(f"role_{f.role}") for f in found.findings],
                say("harm"): [say(f"harm_{f.harm}") for f in found.findings],
                say("count"): [f.count for f in found.findings],
                say("ranks"): [fold_ranks(f.ranks) for f in found.findings],
                say("first"): [_place(f.first) for f in found.findings],
                say("note"): [f.note for f in found.findings],
            }
        ),
        hide_index=True,
    )


def _place(place: Place) -> str:
    return f"{place.file}:{place.line}"


def _unknown(found: Diagnosis) -> None:
    for one in found.unknown:
        where = f"{_place(one.first)} · {say('ranks')} {fold_ranks(one.ranks)} · × {one.count}"
        st.caption(markdown(where))
        st.code("\n".join([*one.frames, f"{one.exception}: {one.message}"]), language=None, wrap_lines=True)


def _facts(found: Diagnosis, problems: list[InputProblem]) -> None:
    left, right = st.columns(2, gap="medium")
    with left:
        st.markdown(f"###### {say('progress')}")
        st.text(progress_line(found, language()) or formats.NOTHING)
    with right:
        st.markdown(f"###### {say('environment')}")
        st.text(environment_line(found) or formats.NOTHING)
    if notes := [note for note in found.notes if note not in map(str, problems)]:
        st.markdown(f"###### {say('notes')}")
        st.text("\n".join(notes))
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
        st.markdown(f"###### {say('in_context')}")
        st.code(lines, language=None)
    if found.unknown:
        st.markdown(f"###### {say('unknown')}")
        _unknown(found)
    if found.findings:
        st.markdown(f"###### {say('findings')}")
        _findings(found)
    _facts(found, problems)
    with st.container(horizontal=True):
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


head(say("postmortem"))
_files = st.file_uploader(say("upload"), accept_multiple_files=True, key="uploads")
if not _files:
    st.caption(say("upload_next"))
    st.caption(say("upload_or"))
    st.code("stallwatch diagnose logs/", language=None)
    st.session_state.pop("report", None)
else:
    # Reruns for other reasons (a click on a table, the language of a heading) must not read the files again.
    _asked = (language(), *((file.file_id, file.size) for file in _files))
    if st.session_state.get("report", (None,))[0] != _asked:
        st.session_state["report"] = (_asked, _diagnose(_files))
    _report(*st.session_state["report"][1])
