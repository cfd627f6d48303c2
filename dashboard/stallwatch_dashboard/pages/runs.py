"""Every run in one row, those that need someone first. What is chosen stands in the address, to be shared."""

from __future__ import annotations

from typing import Any, get_args

import streamlit as st

from stallwatch_dashboard import formats, words_sources
from stallwatch_dashboard.overview import RunRow, State
from stallwatch_dashboard.pages.common import ICONS, head, into_address, language, page, say, switch, zone
from stallwatch_dashboard.pages.incident import missing
from stallwatch_dashboard.pages.runs_table import columns, table
from stallwatch_dashboard.safetext import markdown, verbatim
from stallwatch_dashboard.selection import MOST_SEARCH, ORDERS, Selection
from stallwatch_dashboard.sources.embedded import shared
from stallwatch_dashboard.words import speaker

_MOST_VISIBLE = 18  #: rows; a longer table scrolls
_ROW_PIXELS = 35


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


def _choose() -> Selection:
    """The controls, set from the address; whatever is chosen is written back to it."""
    told = Selection.from_query(st.query_params.to_dict())
    find, order = st.columns([7, 3])
    search = find.text_input(
        say("find_run"),
        told.search,
        max_chars=MOST_SEARCH,
        key="runs_search",
        placeholder=say("find_run"),
        label_visibility="collapsed",
        icon=":material/search:",
    )
    chosen_order = order.selectbox(
        say("order"),
        ORDERS,
        index=ORDERS.index(told.order),
        format_func=lambda name: say("ordered_by", say(f"order_{name}")),
        key=f"runs_order-{language()}",  # the browser keeps the words of a choice that it knows
        label_visibility="collapsed",
    )
    chosen_states = st.pills(  # a row of their own: beside the others there is no room for all
        say("state"),
        get_args(State),
        selection_mode="multi",
        default=told.states,
        format_func=lambda state: f"{ICONS[state]} {say(state)}",
        key="runs_states",
        label_visibility="collapsed",
    )
    chosen = Selection(tuple(chosen_states), search or "", chosen_order)
    if chosen != told:
        _to_address(chosen)
    return chosen


def _to_address(chosen: Selection) -> None:
    asked = chosen.to_query()
    for name in ("state", "q", "sort"):
        into_address(name, asked.get(name))


def _open(rows: list[RunRow]) -> None:
    """The reader chose a row: go to its page."""
    chosen: Any = st.session_state.get("runs_table", {}).get("selection", {}).get("rows", [])
    if chosen and chosen[0] < len(rows):
        st.session_state["open_run"] = rows[chosen[0]].run


def _summary(rows: list[RunRow], shown: int) -> str:
    """How many runs are in which state."""
    counts = {state: sum(row.state == state for row in rows) for state in get_args(State)}
    told = " · ".join(f"{ICONS[state]} {count} {say(state)}" for state, count in counts.items() if count)
    return told if shown == len(rows) else f"{say('runs_shown', shown, len(rows))} · {told}"


@st.fragment(run_every="2s")
def _live(chosen: Selection) -> None:
    source = shared()
    every, now = source.rows(), source.clock()
    with st.container():  # always there, so that the table keeps its place
        missing()
    if not every:
        _empty()
        return
    rows = chosen.of(every, now)
    st.caption(_summary(every, len(rows)))
    if not rows:
        st.info(say("no_run_fits"), icon=":material/filter_alt_off:")
    else:
        st.dataframe(
            table(rows, now, zone(), speaker(language())),  # asked once, not for every cell
            hide_index=True,
            key="runs_table",
            on_select=lambda: _open(rows),
            selection_mode="single-row",
            column_config=columns(say),
            height=_ROW_PIXELS * (1 + min(len(rows), _MOST_VISIBLE)) + 3,
            row_height=_ROW_PIXELS,
            placeholder=formats.NOTHING,
        )
        st.caption(say("open_run"))
    if "open_run" in st.session_state:
        st.rerun()
    if failing := [one for one in source.targets() if one.error and one.run is None]:
        st.markdown(f"**{say('targets_failing')}**")
        st.text(
            verbatim(
                "\n".join(
                    f"{one.url}: {words_sources.retold(one.error or '', language())}" for one in failing
                )
            )
        )


if "open_run" in st.session_state:
    switch("run", run=st.session_state["open_run"])
head(say("runs"))
_selection = _choose() if shared().run_names() else Selection()
_live(_selection)
