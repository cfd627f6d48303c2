"""Draw the table of runs. Urgent runs come first."""

from __future__ import annotations

import streamlit as st

from stallwatch_dashboard.data.source import shared
from stallwatch_dashboard.pages.common import catalogue, head, page, reader, render, say
from stallwatch_dashboard.pages.incident import missing
from stallwatch_dashboard.pages.runs_table import draw_table, table
from stallwatch_dashboard.safetext import markdown, verbatim


def _empty() -> None:
    with st.container(border=True, key="verdict-quiet"):
        st.markdown(f"### {say('no_runs')}")
        st.write(say("no_runs_next"))
        st.code("stallwatch run -- torchrun --nproc-per-node 8 train.py", language=None)
        st.write(say("no_runs_tail"))
        st.code("stallwatch tail 'logs/*.log'", language=None)
        st.write(say("no_runs_dead"))
        st.page_link(page("postmortem"))
        st.caption(markdown(say("looked_in", shared().settings.home / "runs")))


@st.fragment(run_every="2s")
def _live() -> None:
    source = shared()
    rows = source.rows()
    with st.container():  # this container always exists, so that the table keeps its position
        missing()
    if not rows:
        _empty()
        return
    draw_table(table(rows, reader(), catalogue(source.settings.rules).pages), key="runs_table")
    if failing := [target for target in source.targets() if target.error and target.run is None]:
        st.markdown(f"**{say('targets_failing')}**")
        lines = [f"{target.url}: {render(target.error or '')}" for target in failing]
        st.text(verbatim("\n".join(lines)))


head(say("runs"))
_live()
