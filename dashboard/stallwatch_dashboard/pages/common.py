"""Pieces that every page draws: the head, the reader's language and zone, plain facts."""

from __future__ import annotations

from collections.abc import Callable
from datetime import tzinfo
from pathlib import Path
from typing import NoReturn
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import streamlit as st
from streamlit.navigation.page import StreamlitPage
from streamlit.runtime.scriptrunner import get_script_run_ctx

from stallwatch_dashboard import theme, words
from stallwatch_dashboard.charts.base import DARK, LIGHT, Look
from stallwatch_dashboard.data.source import shared
from stallwatch_dashboard.pages.runs_table import ICONS as ICONS
from stallwatch_dashboard.safetext import markdown
from stallwatch_exporter.settings import cache_home
from stallwatch_rules.locale import render
from stallwatch_rules.pages.catalogue import Catalogue, load_catalogue

_CHOSEN, _TOLD, _DRAWN = "chosen_language", "told_language", "drawn_page"
CLICKED = ("open_incident",)  #: what a click in a fragment leaves for the page to go to

#: Pages in the order of the navigation, with their icons.
PAGES = {
    "runs": ":material/list:",
    "run": ":material/monitoring:",
    "incidents": ":material/notifications:",
    "postmortem": ":material/troubleshoot:",
    "rules": ":material/menu_book:",
    "health": ":material/health_metrics:",
}


def page(name: str, *, default: bool = False) -> StreamlitPage:
    """The page of that name, for the navigation and for links to it."""
    path = Path(__file__).with_name(f"{name}.py")
    address = None if default else name  # the first page is at the bare address, and only there
    return st.Page(path, title=say(name), icon=PAGES[name], url_path=address, default=default)


def switch(name: str, **query: str) -> NoReturn:
    """Go to the page of that name, with this in its address; nothing that is refreshed here follows there."""
    leave_fragments()
    st.switch_page(page(name), query_params=query)


def leave_fragments() -> None:
    """Before something else is drawn: answer no more questions for what this page refreshes.

    The browser goes on asking for a page's fragments until it hears of the new page. Such a question that
    comes in the meantime would be answered after the new page, with the last page's address: the browser
    would go back to that, or throw the new page away, draw nothing and report a "Bad delta path index"; and
    a click that it still tells of would count again (streamlit 1.67, ScriptRunner._run_script,
    ScriptRequests.request_rerun). A fragment that is not kept is not asked for (AppSession.request_rerun),
    and what has been asked for until now gives way to the new page.
    """
    if (context := get_script_run_ctx()) is not None:
        context.fragment_storage.clear()


def leave_last_page() -> None:
    """The same where the browser went to another page by itself; what was clicked there is done with."""
    context = get_script_run_ctx()
    if context is not None and st.session_state.get(_DRAWN) != context.page_script_hash:
        leave_fragments()
        st.session_state[_DRAWN] = context.page_script_hash
        for clicked in CLICKED:
            st.session_state.pop(clicked, None)


def note_page() -> None:
    """Remember which page this is, once the navigation found it.

    Of an address that was just opened, Streamlit tells the main script until then, and the page from the next
    run on (streamlit 1.67, PagesManager): taken for another page, that would throw the first click away.
    """
    if (context := get_script_run_ctx()) is not None:
        st.session_state[_DRAWN] = context.page_script_hash


def into_address(name: str, value: str | None) -> None:
    """Keep this in the page's address; None or nothing takes it out.

    What is there already is not set again: each setting is a step of the browser's history.
    """
    if value and st.query_params.get(name) != value:
        st.query_params[name] = value
    elif not value and name in st.query_params:
        del st.query_params[name]


def language() -> str:
    """What the reader chose, else what the address says or said, else Chinese where the browser speaks it,
    else what the dashboard was started with."""
    if (told := st.query_params.get("lang")) in words.LANGUAGES:
        st.session_state[_TOLD] = told  # the next page's address does not say it again
    chosen = st.session_state.get(_CHOSEN) or st.session_state.get(_TOLD) or _of_browser()
    chosen = chosen or shared().settings.language
    return chosen if chosen in words.LANGUAGES else "en"


def _of_browser() -> str | None:
    """Chinese where the browser's own language is; None for others: English is nobody's choice there."""
    return "zh" if (st.context.locale or "").casefold().startswith("zh") else None


def _choose_language() -> None:
    """Remember the choice: the switch itself is another one on every page, and forgets."""
    st.session_state[_CHOSEN] = st.session_state["language"] or language()


def say(key: str, *values: object) -> str:
    """A fixed word in the reader's language."""
    return words.speaker(language())(key, *values)


def zone() -> tzinfo | None:
    """The reader's time zone as the browser tells it; this host's where it does not."""
    try:
        return ZoneInfo(st.context.timezone) if st.context.timezone else None
    except (ZoneInfoNotFoundError, ValueError):
        return None


def look() -> Look:
    """How charts should look for this reader."""
    return DARK if getattr(st.context.theme, "type", None) == "dark" else LIGHT


@st.cache_resource(show_spinner=False)
def catalogue(extra: tuple[str, ...]) -> Catalogue:
    """The rule pages, read once per process."""
    return load_catalogue([Path(folder) for folder in extra], cache=cache_home())


def head(title: str, choose: Callable[[], str | None] | None = None) -> str | None:
    """The page's title, or a choice in its place; the language beside it; what is wrong with the source."""
    st.html(theme.STYLE)
    left, right = st.columns([3, 1], vertical_alignment="center")
    with left:
        chosen = choose() if choose else None
        with st.container(key="heard" if choose else "head"):
            st.markdown(f"## {markdown(f'{title} {chosen}' if chosen else title)}")
    with right.container(horizontal=True, horizontal_alignment="right"):
        st.segmented_control(
            say("language"),
            list(words.LANGUAGES),
            format_func=words.LANGUAGES.__getitem__,
            default=language(),
            key="language",
            on_change=_choose_language,
            label_visibility="collapsed",
        )
    if problem := shared().problem:
        st.warning(markdown(render(problem, language())), icon=":material/warning:")
    return chosen
