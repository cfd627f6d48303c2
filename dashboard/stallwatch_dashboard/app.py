"""Draw the frame around all pages: the title of the browser tab, and the navigation."""

from __future__ import annotations

from pathlib import Path

import streamlit as st

from stallwatch_dashboard import readiness
from stallwatch_dashboard.data.source import shared
from stallwatch_dashboard.pages.common import PAGES, leave_last_page, missing_page, note_page, page
from stallwatch_dashboard.pages.signin import admit, draw_person


def main(first: str = "runs") -> None:
    """Draw the page that the URL names, or the `first` page if the URL names no page."""
    leave_last_page()
    shared()  # starts scraping, which continues when no page is open

    # If the icon were specified by name, browsers would fetch it from a font server.
    icon = str(Path(__file__).with_name("icon.svg"))
    st.set_page_config(page_title="Stallwatch", page_icon=icon, layout="wide")
    if not admit():
        return
    pages = {name: page(name, default=name == first) for name in PAGES}
    nowhere = missing_page(pages)
    chosen = st.navigation([*pages.values(), *nowhere], position="top")
    note_page()
    draw_person()
    chosen.run()
    readiness.freeze_loaded_objects()
