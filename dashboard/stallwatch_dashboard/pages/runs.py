"""Every run in one row, those that need someone first."""

from __future__ import annotations

import pandas as pd
import streamlit as st

from stallwatch_dashboard import formats
from stallwatch_dashboard.overview import RunRow
from stallwatch_dashboard.pages.common import ICONS, head, page, say, zone
from stallwatch_dashboard.safetext import markdown
from stallwatch_dashboard.sources.embedded import shared


def table(rows: list[RunRow], now: float) -> pd.DataFrame:
    """The rows as text and numbers in the reader's words."""
    return pd.DataFrame(
        {
            say("state"): [f"{ICONS[row.state]} {say(row.state)}" for row in rows],
            say("run"): [row.run for row in rows],
            say("step"): [formats.steps(row.step, row.total_steps) for row in rows],
            say("loss"): [formats.number(row.loss) for row in rows],
            say("step_time"): [formats.seconds(row.step_seconds) for row in rows],
            say("against_baseline"): [_against(row) for row in rows],
            say("invalidations"): [int(row.invalidations) for row in rows],
            say("open_incidents"): [", ".join(sorted({i.rule for i in row.open_incidents})) for row in rows],
            say("started"): [formats.clock(row.started_at, zone(), now) for row in rows],
            say("duration"): [formats.seconds(row.seconds(now)) for row in rows],
            say("host"): [row.host for row in rows],
        }
    )


def _against(row: RunRow) -> str:
    if not row.step_seconds or not row.baseline_seconds:
        return formats.NOTHING
    return f"× {row.step_seconds / row.baseline_seconds:.2f}"


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


def _open(rows: list[RunRow]) -> None:
    """The reader chose a row: go to its page."""
    chosen = st.session_state.get("runs_table", {}).get("selection", {}).get("rows", [])
    if chosen and chosen[0] < len(rows):
        st.session_state["open_run"] = rows[chosen[0]].run


@st.fragment(run_every="2s")
def _live() -> None:
    source = shared()
    rows, now = source.rows(), source.clock()
    if not rows:
        _empty()
        return
    st.dataframe(
        table(rows, now),
        hide_index=True,
        key="runs_table",
        on_select=lambda: _open(rows),
        selection_mode="single-row",
        column_config={say("run"): st.column_config.TextColumn(width="medium")},
    )
    st.caption(say("open_run"))
    if "open_run" in st.session_state:
        st.switch_page(page("run"))
    if failing := [target for target in source.targets() if target.error and target.run is None]:
        st.markdown(f"**{say('targets_failing')}**")
        st.text("\n".join(f"{target.url}: {target.error}" for target in failing))


head(say("runs"))
_live()
