"""What stands at an address that is no page's: that there is none, and the way to those that are."""

from __future__ import annotations

from collections.abc import Mapping

import streamlit as st
from streamlit.navigation.page import StreamlitPage
from streamlit.runtime.scriptrunner import get_script_run_ctx

from stallwatch_dashboard.addresses import readable
from stallwatch_dashboard.pages.common import head, say

_ASKED = "missing_page"


def missing_page(pages: Mapping[str, StreamlitPage]) -> list[StreamlitPage]:
    """For the navigation: a page of the name in the address where none of `pages` has it. No menu shows it.

    The browser tells the name once; from then on it tells a number that is made of the name. So the page is
    kept for as long as the reader's session (streamlit 1.67, PagesManager).
    """
    context = get_script_run_ctx()
    name = context.pages_manager.intended_page_name if context is not None else None
    if name and name not in {page.url_path for page in pages.values()}:
        st.session_state[_ASKED] = name.strip("/").replace("/", "-")
    if not (asked := st.session_state.get(_ASKED)):
        return []

    def draw() -> None:
        head(say("no_such_page", readable(asked)))
        st.write(say("no_such_page_next"))
        for one in pages.values():
            st.page_link(one)

    return [st.Page(draw, title="Stallwatch", url_path=asked, visibility="hidden")]
