"""Draw the sign-in page, which admits only people who are listed in the configuration."""

from __future__ import annotations

import streamlit as st
from streamlit.runtime.scriptrunner import get_script_run_ctx

from stallwatch_dashboard import theme
from stallwatch_dashboard.access import Role, role_of
from stallwatch_dashboard.data.source import shared
from stallwatch_dashboard.pages.common import say
from stallwatch_dashboard.safetext import markdown
from stallwatch_dashboard.uploads.gate import LEDGER

# The provider sends people back to the first page, because the callback of Streamlit always redirects to the
# root (1.67, web/server/starlette/starlette_auth_routes.py). The browser therefore stores the requested
# address, for this tab only, and opens it after the login.
_KEEP = """
export default function ({ data }) {
  const here = location.pathname + location.search;
  if (here === data.root || here === data.root + "/") sessionStorage.removeItem("stallwatch-wanted");
  else sessionStorage.setItem("stallwatch-wanted", here);
}
"""
# The stored address contains no host. Otherwise, a link could lead through the sign-in to another site. A
# person who has left the first page before this script runs is not redirected.
_GO = """
export default function ({ data }) {
  const wanted = sessionStorage.getItem("stallwatch-wanted");
  sessionStorage.removeItem("stallwatch-wanted");
  const atRoot = location.pathname === data.root || location.pathname === data.root + "/";
  if (wanted !== null && atRoot) location.replace(location.origin + wanted);
}
"""


def _run(name: str, script: str) -> None:
    """Run a script in the browser, in an invisible component."""
    draw = st.components.v2.component(name, html="<span hidden></span>", js=script, isolate_styles=False)
    base = str(st.get_option("server.baseUrlPath") or "").strip("/")
    draw(key=name, data={"root": f"/{base}" if base else ""})


def role() -> Role | None:
    """Return the role of this page's user. If no login is configured, the user has all permissions."""
    login = shared().settings.login
    if not login.on:
        return "operator"
    if not st.user.get("is_logged_in"):
        return None
    return role_of(login, st.user.to_dict())


def may_operate() -> bool:
    """Return whether this person is an operator. The server checks this before every action."""
    return role() == "operator"


def offer_uploads() -> None:
    if (context := get_script_run_ctx()) is not None and may_operate():
        LEDGER.open_for(context.session_id)


def admit() -> bool:
    """Return whether the person has access. Otherwise, draw the sign-in page or a refusal."""
    if role() is not None:
        return True
    st.html(theme.STYLE)
    if not st.user.get("is_logged_in"):
        st.markdown("## Stallwatch")
        st.caption(say("sign_in_next"))
        if st.button(say("sign_in"), icon=":material/login:", key="sign_in", type="primary"):
            st.login()
        _run("stallwatch_keep_address", _KEEP)
        return False
    st.markdown(f"## {say('not_allowed')}")
    email = st.user.get("email")
    name = markdown(email) if isinstance(email, str) else say("nameless")
    st.markdown(say("not_allowed_next", name))
    _sign_out()
    return False


def draw_person() -> None:
    """Draw the name and role of the signed-in person, and the sign-out button."""
    found = role()
    if not shared().settings.login.on or found is None:
        return
    _run("stallwatch_go_to_address", _GO)
    with st.container(horizontal=True, horizontal_alignment="right", vertical_alignment="center"):
        name = st.user.get("email") or st.user.get("name") or ""
        st.caption(f"{markdown(str(name))} · {say(f'role_{found}')}", width="content")
        _sign_out()


def _sign_out() -> None:
    if st.button(say("sign_out"), icon=":material/logout:", key="sign_out"):
        st.logout()
