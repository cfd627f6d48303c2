"""Draw the dashboard's health page: sources, lost records, chats with a test button, disk, and versions."""

from __future__ import annotations

import streamlit as st

from stallwatch_alerts.masking import mask_url
from stallwatch_alerts.trial import test_message
from stallwatch_dashboard import formats, health
from stallwatch_dashboard.data.source import shared
from stallwatch_dashboard.pages.common import duration, head, language, render, say
from stallwatch_dashboard.pages.signin import may_operate
from stallwatch_dashboard.safetext import cell, markdown, verbatim

_ICONS = {"answers": "✔", "late": "?", "silent": "✖"}


@st.fragment(run_every="5s")
def _sources() -> None:
    source = shared()
    now = source.clock()
    found = health.sources_of(source.targets(), source.ended(), now)
    states = [health.state_of(target, now) for target in found]
    st.markdown(f"#### {say('sources')}")
    if not found:
        st.caption(say("no_sources" if source.scraper is not None else "asks_prometheus"))
    else:
        st.dataframe(
            {
                say("state"): [f"{_ICONS[state]} {say(state)}" for state in states],
                say("run_column"): [cell(target.run or "") or formats.NOTHING for target in found],
                say("address"): [cell(target.url) for target in found],
                say("last_answer"): [duration(target.lag(now)) for target in found],
                say("scrapes"): [target.scrapes for target in found],
                say("failures"): [target.failures for target in found],
                say("error"): [cell(render(target.error or "")) for target in found],
            },
            hide_index=True,
            column_config={say("error"): st.column_config.TextColumn(width="large")},
        )
    lost = health.losses(source.store, source.run_names())
    st.markdown(f"#### {say('lost_records')}")
    if not lost:
        st.caption(say("nothing_lost"))
    else:
        st.dataframe(
            {say("run_column"): [cell(run) for run in lost], say("lost_records"): list(lost.values())},
            hide_index=True,
        )


def _channels() -> None:
    urls = shared().settings.alert_urls
    st.markdown(f"#### {say('channels')}")
    if not urls:
        st.caption(say("no_channels"))
        st.code('[alerts]\nurls = ["slack://…"]', language="toml")
        return
    st.text(verbatim("\n".join(mask_url(url) for url in urls)))
    if not may_operate():
        st.caption(say("operators_send"))
        return
    if st.button(say("send_test"), icon=":material/send:", key="send_test"):
        with st.spinner(say("sending")):
            st.session_state["trial"] = test_message(urls, language())
    for result in st.session_state.get("trial", ()):
        if result.delivered:
            st.success(markdown(result.url), icon=":material/check:")
        else:
            st.error(f"{markdown(result.url)}: {markdown(result.reason)}", icon=":material/error:")


def _versions() -> None:
    st.markdown(f"#### {say('versions')}")
    st.text("\n".join(f"{name} {number}" for name, number in health.versions().items()))
    if (found := health.disk(shared().settings.home)) is not None:
        st.markdown(f"#### {say('disk')}")
        st.text(str(shared().settings.home))
        st.text(say("disk_use", *map(formats.byte_size, found)))


head(say("health"))
_sources()
_left, _right = st.columns(2, gap="medium")
with _left:
    _channels()
with _right:
    _versions()
