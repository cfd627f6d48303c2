"""Draw all incidents or, if the address contains ``?incident=``, a single incident."""

from __future__ import annotations

import streamlit as st

from stallwatch_dashboard.data.source import shared
from stallwatch_dashboard.pages.common import (
    catalogue,
    head,
    into_address,
    leave_fragments,
    reader,
    render,
    say,
    switch,
)
from stallwatch_dashboard.pages.incident import draw_incident, draw_incidents, missing
from stallwatch_dashboard.verdict import title_of
from stallwatch_exporter.incident import Incident

_MOST = 2000  #: maximum number of incidents in the table
_STATUSES = ("open", "resolved")
_SEVERITIES = ("critical", "warning", "info")
_TALLEST = 18


def _fits(incident: Incident, words: list[str], kinds: list[str]) -> bool:
    statuses = [kind for kind in kinds if kind in _STATUSES]
    severities = [kind for kind in kinds if kind in _SEVERITIES]
    if (statuses and incident.status not in statuses) or (severities and incident.severity not in severities):
        return False
    page = catalogue(shared().settings.rules).pages.get(incident.rule)
    about = [title_of(incident, page, reader()), *map(render, (incident.note, *incident.evidence))]
    text = " ".join((incident.run, incident.rule, incident.host, *incident.hosts, *about))
    return all(word in text.casefold() for word in words)


def _choose() -> tuple[list[str], list[str]]:
    """Draw the filters and store them in the address. Return the search words and the selected filters."""
    query = st.query_params
    left, right = st.columns([4, 6], vertical_alignment="bottom")
    search = left.text_input(
        say("find_incident"),
        query.get("q", ""),
        max_chars=200,
        key="incidents_search",
        placeholder=say("find_incident"),
        label_visibility="collapsed",
        icon=":material/search:",
    )
    named = query.get("show", "").split(",")
    kinds = right.pills(
        say("state"),
        [*_STATUSES, *_SEVERITIES],
        selection_mode="multi",
        default=[kind for kind in (*_STATUSES, *_SEVERITIES) if kind in named],
        format_func=lambda kind: say(kind if kind in _STATUSES else f"severity_{kind}"),
        key="incidents_kinds",
        label_visibility="collapsed",
    )
    into_address("q", search)
    into_address("show", ",".join(kinds))
    return search.casefold().split(), list(kinds)


@st.fragment(run_every="3s")
def _list(words: list[str], kinds: list[str]) -> None:
    every = shared().newest_incidents(_MOST)
    if not every:
        if missing():
            return
        with st.container(border=True, key="verdict-quiet"):
            st.markdown(f"### {say('no_incidents')}")
            st.write(say("no_incidents_next"))
        return
    found = [incident for incident in every if _fits(incident, words, kinds)]
    found.sort(key=lambda incident: incident.status != "open")
    if not found:
        st.info(say("no_incident_fits"), icon=":material/filter_alt_off:")
        return
    draw_incidents(found, key="incidents_table", height=35 * (1 + min(len(found), _TALLEST)) + 3)
    st.caption(say("open_incident"))


if "open_incident" in st.session_state:
    leave_fragments()
    into_address("incident", st.session_state.pop("open_incident"))
if _key := st.query_params.get("incident"):
    head(say("incident"))
    if st.button(say("all_incidents"), icon=":material/arrow_back:", key="all_incidents"):
        del st.query_params["incident"]
        switch("incidents")
    draw_incident(_key)
else:
    head(say("incidents"))
    _list(*_choose())
