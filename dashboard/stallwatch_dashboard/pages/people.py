"""What a person can do about an incident: acknowledge it, silence it, leave a note."""

from __future__ import annotations

from collections.abc import Callable

import streamlit as st

from stallwatch_dashboard import formats
from stallwatch_dashboard.data.incident_store import NotKept
from stallwatch_dashboard.data.source import shared
from stallwatch_dashboard.pages.common import say, zone
from stallwatch_dashboard.pages.signin import may_operate
from stallwatch_dashboard.safetext import markdown
from stallwatch_exporter.incident import Incident

_HOURS = (1, 4, 24, 168)


def draw_actions(incident: Incident) -> None:
    """The controls, or who has them; nothing where no database holds the incident."""
    cases = shared().cases
    if cases.incident(incident.id) is None:
        return
    if not may_operate():
        st.caption(say("operators_act"))
        return
    now = shared().clock()
    with st.container(border=True):
        who = _who()
        first, second = st.columns(2, gap="medium", vertical_alignment="bottom")
        with first:
            _acknowledge(incident, who, now)
        with second:
            _silence(incident, who, now)
        with st.form("note", clear_on_submit=True, border=False):
            text = st.text_area(say("your_note"), max_chars=1000, key="note_text", height=80)
            if st.form_submit_button(say("add_note"), icon=":material/edit_note:") and text.strip():
                _do(lambda: cases.note(incident.id, who, text.strip(), now))


def _who() -> str:
    """Who acts: as signed in, else as the person says."""
    signed_in = st.user.get("email") if shared().settings.login.on else None
    if isinstance(signed_in, str):
        return signed_in
    return st.text_input(say("your_name"), max_chars=80, key="person").strip()


def _acknowledge(incident: Incident, who: str, now: float) -> None:
    cases = shared().cases
    if cases.acknowledged(incident.id):
        st.caption(say("is_acknowledged"))
    elif incident.status == "open" and st.button(
        say("acknowledge"), icon=":material/check:", key="acknowledge"
    ):
        _do(lambda: cases.acknowledge(incident.id, who, now))


def _silence(incident: Incident, who: str, now: float) -> None:
    cases = shared().cases
    if found := cases.silences(incident, now):
        until = max(found, key=lambda silence: silence.ends_at)
        st.caption(markdown(say("silenced_until", formats.clock(until.ends_at, zone(), now))))
        if st.button(say("end_silence"), icon=":material/notifications_active:", key="end_silence"):
            _do(lambda: cases.end_silences(found, now))
        return
    left, right = st.columns([3, 2], vertical_alignment="bottom")
    hours = left.selectbox(
        say("silence_for"), _HOURS, format_func=lambda h: formats.seconds(h * 3600.0), key="silence_hours"
    )
    if right.button(say("silence"), icon=":material/notifications_off:", key="silence"):
        _do(lambda: cases.silence(incident, hours * 3600.0, who, now))


def _do(act: Callable[[], object]) -> None:
    """Act for those who may, say what went wrong, else draw the page anew."""
    if not may_operate():
        return
    try:
        act()
    except NotKept as error:
        st.error(markdown(say("not_done", error)), icon=":material/error:")
        return
    st.rerun()
