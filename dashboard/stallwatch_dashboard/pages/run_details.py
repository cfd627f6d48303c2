"""Parts of the Run page below its charts: another run beside it by step, and the log around a moment."""

from __future__ import annotations

from datetime import datetime, timedelta

import streamlit as st

from stallwatch_dashboard import formats
from stallwatch_dashboard.charts.by_step import compared
from stallwatch_dashboard.data import log_copies
from stallwatch_dashboard.data.overview import stood_since
from stallwatch_dashboard.data.source import shared
from stallwatch_dashboard.pages.board import draw_board
from stallwatch_dashboard.pages.common import into_address, look, say, zone
from stallwatch_dashboard.safetext import plain
from stallwatch_dashboard.verdict import rule_name
from stallwatch_exporter.incident import Incident


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


_SPANS = (10, 60, 600)  #: seconds before and after


def draw_moment(run: str) -> None:
    """The controls and the lines. Nothing is read before the reader opens it."""
    found = log_copies.copies(shared().folder(run))
    if not found:
        return
    if not st.toggle(say("log_around"), key=f"around-{run}"):
        return
    incidents = shared().incidents(run)
    first, second, third, fourth, fifth = st.columns([3, 1.4, 1.4, 1.6, 3], vertical_alignment="bottom")
    choices: list[Incident | None] = [*incidents, None]
    chosen = first.selectbox(say("moment"), choices, format_func=_named, key=f"moment-{run}")
    at = _start(run, chosen)
    if chosen is None:
        usual = _local(at).time().replace(microsecond=0)
        at = _at(run, second.time_input(say("time_of_day"), usual, step=60, key=f"time-{run}"))
    seconds = third.selectbox(
        say("span"), _SPANS, index=1, format_func=lambda s: f"± {formats.seconds(s)}", key=f"span-{run}"
    )
    ranks = {_rank_name(copy.rank): copy for copy in found}
    rank = fourth.selectbox(say("ranks"), [say("all_ranks"), *ranks], key=f"rank-{run}")
    search = fifth.text_input(say("search_lines"), key=f"search-{run}", icon=":material/search:")
    own = [ranks[rank]] if rank in ranks else found
    lines = log_copies.matching(log_copies.around(own, at, seconds), search)
    folded = log_copies.fold(lines)
    st.caption(say("lines_folded", len(lines), len(folded), formats.clock(at, zone())))
    shown = log_copies.drawn(folded, at, zone(), "·")
    st.code(shown or say("no_lines_here"), language=None, height=420)


def _named(incident: Incident | None) -> str:
    if incident is None:
        return say("a_time")
    name = plain(rule_name(incident.rule, say, incident.exception))
    return f"{formats.clock(incident.opened_at, zone())} {name}"


def _rank_name(rank: int | None) -> str:
    return say("rank_unknown") if rank is None else say("rank", rank)


def _start(run: str, incident: Incident | None) -> float:
    """The moment before an incident was raised at which things stopped; for a time, the end of the run."""
    if incident is not None:
        return stood_since(incident)
    info = shared().info(run)
    return (info.ended_at or info.updated_at) if info is not None else shared().clock()


def _local(time: float) -> datetime:
    return datetime.fromtimestamp(time, zone())


def _at(run: str, typed: object) -> float:
    """The last such time of day that the run saw."""
    end = _local(_start(run, None)) + timedelta(minutes=1)
    moment = datetime.combine(end.date(), typed, tzinfo=end.tzinfo)  # type: ignore[arg-type]
    return (moment if moment <= end else moment - timedelta(days=1)).timestamp()
