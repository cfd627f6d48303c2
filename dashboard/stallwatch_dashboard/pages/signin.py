"""Nobody gets past here whom the configuration does not name: signing in, and what a role may do."""

from __future__ import annotations

import streamlit as st
from streamlit.runtime.scriptrunner import get_script_run_ctx

from stallwatch_dashboard import theme
from stallwatch_dashboard.access import Role, role_of
from stallwatch_dashboard.data.source import shared
from stallwatch_dashboard.pages.common import say
from stallwatch_dashboard.pages.wanted import go_to_address, keep_address
from stallwatch_dashboard.safetext import markdown
from stallwatch_dashboard.uploads.gate import LEDGER


def role() -> Role | None:
    """The role of whoever looks at this page, as the configuration says at this moment.

    Without a login the dashboard is its owner's: he may do everything.
    """
    login = shared().settings.login
    if not login.on:
        return "operator"
    if not st.user.get("is_logged_in"):
        return None
    return role_of(login, st.user.to_dict())


def may_operate() -> bool:
    """Whether this person may act. Asked on the server by every action, whatever the browser sent."""
    return role() == "operator"


def offer_uploads() -> None:
    """Let the server take files from this session."""
    if (context := get_script_run_ctx()) is not None and may_operate():
        LEDGER.open_for(context.session_id)


def admit() -> bool:
    """Whether the pages may be drawn; draws what there is to see instead where they may not."""
    if role() is not None:
        return True
    st.html(theme.STYLE)
    if not st.user.get("is_logged_in"):
        st.markdown("## Stallwatch")
        st.caption(say("sign_in_next"))
        if st.button(say("sign_in"), icon=":material/login:", key="sign_in", type="primary"):
            st.login()
        keep_address()
        return False
    st.markdown(f"## {say('not_allowed')}")
    email = st.user.get("email")
    who = markdown(email) if isinstance(email, str) else say("nameless")
    st.markdown(say("not_allowed_next", who))
    _sign_out()
    return False


def draw_person() -> None:
    """Who is signed in and as what, with the way out; nothing without a login."""
    found = role()
    if not shared().settings.login.on or found is None:
        return
    go_to_address()
    with st.container(horizontal=True, horizontal_alignment="right", vertical_alignment="center"):
        name = st.user.get("email") or st.user.get("name") or ""
        st.caption(f"{markdown(str(name))} · {say(f'role_{found}')}", width="content")
        _sign_out()


def _sign_out() -> None:
    if st.button(say("sign_out"), icon=":material/logout:", key="sign_out"):
        st.logout()
