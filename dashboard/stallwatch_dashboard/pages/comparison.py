"""This run beside another one, by step."""

from __future__ import annotations

import streamlit as st

from stallwatch_dashboard.charts.by_step import compared
from stallwatch_dashboard.data.source import shared
from stallwatch_dashboard.pages.board import draw_board
from stallwatch_dashboard.pages.common import into_address, look, say
from stallwatch_dashboard.safetext import plain


def draw_comparison(run: str) -> None:
    """A choice of the other run, which the address keeps, and the charts of both."""
    others = [name for name in shared().run_names() if name != run]
    if not others:
        return
    told = st.query_params.get("with")
    left, right = st.columns([6, 4], vertical_alignment="center")
    left.markdown(f"#### {say('compare')}")
    other = right.selectbox(
        say("compare_with"),
        others,
        index=others.index(told) if told in others else None,
        key=f"compare-{run}",
        format_func=plain,
        placeholder=say("compare_with"),
        label_visibility="collapsed",
    )
    into_address("with", other)
    if other:
        st.fragment(_draw, run_every="5s")(run, other)


def _draw(run: str, other: str) -> None:
    source = shared()
    drawn = compared((run, other), source.frames(run), source.frames(other), look(), say)
    if drawn:
        draw_board(drawn, key=f"compared-{run}-{other}", say=say)
    else:
        st.caption(say("nothing_to_compare"))
