"""Draw the parts that all pages share: the header, the user's language and time zone, and the verdict."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import tzinfo
from pathlib import Path
from typing import NoReturn, TypeVar
from urllib.parse import unquote
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import streamlit as st
from streamlit.navigation.page import StreamlitPage
from streamlit.runtime.scriptrunner import get_script_run_ctx

from stallwatch_dashboard import theme, words
from stallwatch_dashboard.data.source import shared
from stallwatch_dashboard.pages.runs_table import ICONS as ICONS
from stallwatch_dashboard.safetext import advice, markdown, prose, verbatim
from stallwatch_dashboard.theme import DARK, LIGHT, Look
from stallwatch_dashboard.verdict import Verdict
from stallwatch_exporter.settings import cache_home
from stallwatch_rules import locale
from stallwatch_rules.messages import Text
from stallwatch_rules.pages.catalogue import Catalogue, load_catalogue

T = TypeVar("T")
_CHOSEN, _OF_ADDRESS, _DRAWN = "chosen_language", "language_in_address", "drawn_page"
_COOKIE = "stallwatch_language"
_COOKIE_SECONDS = 365 * 86400
CLICKED = ("open_incident",)  #: session keys with the ID of the item to open after a click in a fragment

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
    path = Path(__file__).with_name(f"{name}.py")
    address = None if default else name  # only the first page has no path
    return st.Page(path, title=say(name), icon=PAGES[name], url_path=address, default=default)


def switch(name: str, **query: str) -> NoReturn:
    """Open the named page with this query in its address and stop the fragments of the current page."""
    leave_fragments()
    st.switch_page(page(name), query_params=query)


def leave_fragments() -> None:
    """Prevent further reruns of this page's fragments. Call this function before another page is drawn.

    The browser requests reruns of a page's fragments until it receives the new page. The response to such a
    request would arrive after the new page, with the address of the previous page. The browser would return
    to that address, or report a "Bad delta path index" and draw nothing. A click that the browser still
    reports would be reprocessed (streamlit 1.67, ScriptRunner._run_script, ScriptRequests.request_rerun).
    Streamlit does not rerun a fragment that is not stored (AppSession.request_rerun).
    """
    if (context := get_script_run_ctx()) is not None:
        context.fragment_storage.clear()


def leave_last_page() -> None:
    """If the browser opened another page, call `leave_fragments` and discard clicks on the previous page."""
    context = get_script_run_ctx()
    if context is not None and st.session_state.get(_DRAWN) != context.page_script_hash:
        leave_fragments()
        st.session_state[_DRAWN] = context.page_script_hash
        for clicked in CLICKED:
            st.session_state.pop(clicked, None)


def note_page() -> None:
    """After the navigation has determined the current page, store this page.

    After the browser opens an address, Streamlit reports the main script in the first run, and the page
    only in later runs (streamlit 1.67, PagesManager). If this difference counted as a change of page, the
    first click would be discarded.
    """
    if (context := get_script_run_ctx()) is not None:
        st.session_state[_DRAWN] = context.page_script_hash


def into_address(name: str, value: str | None) -> None:
    """Set a parameter of the page's address. A value of None or "" removes the parameter."""
    # Each change adds an entry to the browser's history, so a value that the address already contains is not
    # set a second time.
    if value and st.query_params.get(name) != value:
        st.query_params[name] = value
    elif not value and name in st.query_params:
        del st.query_params[name]


def language() -> str:
    """Return the page's language: the user's choice, or the language of the address, browser, or settings.

    A choice in this session takes precedence over the address, which takes precedence over an earlier choice
    (the cookie). Of the browser's languages, only Chinese counts, because English is often only a default.
    """
    if (named := st.query_params.get("lang")) in words.LANGUAGES:
        st.session_state[_OF_ADDRESS] = named  # the next page's address has no such parameter
    if chosen := st.session_state.get(_CHOSEN) or st.session_state.get(_OF_ADDRESS):
        return str(chosen)
    candidates = (
        st.context.cookies.get(_COOKIE),
        "zh" if (st.context.locale or "").casefold().startswith("zh") else None,
        shared().settings.language,
    )
    return next((name for name in candidates if name in words.LANGUAGES), "en")


def _choose_language() -> None:
    """Store the language that the user chose with the switch, which is a new widget on every page."""
    st.session_state[_CHOSEN] = chosen = st.session_state["language"] or language()
    if "lang" in st.query_params:
        into_address("lang", chosen)  # otherwise, a reload would restore the previous language


def _keep_language() -> None:
    """Store the chosen language in the browser. It applies to addresses that contain no language."""
    if (chosen := st.session_state.get(_CHOSEN)) not in words.LANGUAGES:
        return
    cookie = f"{_COOKIE}={chosen}; path=/; max-age={_COOKIE_SECONDS}; samesite=lax"
    with st.container(key="kept-language"):
        st.html(f"<script>document.cookie = '{cookie}'</script>", unsafe_allow_javascript=True)


def say(key: str, *values: object) -> str:
    return words.Reader(language()).say(key, *values)


def duration(value: float | None) -> str:
    return words.Reader(language()).seconds(value)


def say_or(key: str, otherwise: str) -> str:
    """Return the text for a key, or `otherwise` for an unknown key, such as a key from a later version."""
    try:
        return say(key)
    except KeyError:
        return otherwise


def render(text: Text) -> str:
    return locale.render(text, language())


def zone() -> tzinfo | None:
    """Return the browser's time zone. If it is unknown, return None, which means this host's time zone."""
    try:
        return ZoneInfo(st.context.timezone) if st.context.timezone else None
    except (ZoneInfoNotFoundError, ValueError):
        return None


def reader() -> words.Reader:
    return words.Reader(language(), zone(), shared().clock())


def look() -> Look:
    return DARK if getattr(st.context.theme, "type", None) == "dark" else LIGHT


@st.cache_resource(show_spinner=False)
def catalogue(extra: tuple[str, ...]) -> Catalogue:
    return load_catalogue([Path(folder) for folder in extra], cache=cache_home())


def head(title: str, choose: Callable[[], str | None] | None = None) -> str | None:
    """Draw the page header: the title, the language switch, and any problems with sources.

    If `choose` is given, it draws a selection instead of the title, and the user's selection is returned.
    """
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
    _keep_language()
    if problem := shared().problem:
        st.warning(markdown(render(problem)), icon=":material/warning:")
    return chosen


def chosen_row(table: str, rows: Sequence[T]) -> T | None:
    """Return the row that the user selected in the table with the key `table`, or `None` if there is none."""
    chosen = st.session_state.get(table, {}).get("selection", {}).get("rows", [])
    return rows[chosen[0]] if chosen and chosen[0] < len(rows) else None


MOST_EVIDENCE = 3  #: maximum number of lines of evidence that are shown
_FEW_FIXES = 3


def draw_verdict(found: Verdict, *, icon: str = "", facts: Sequence[str] = ()) -> None:
    """Draw the verdict: the problem, its impact on the run, and the first fixes.

    The user can expand a section with the reason and all fixes.
    """
    with st.container(border=True, key=f"verdict-{found.level}"):
        st.markdown(f"### {icon} {markdown(found.headline)}")
        if caption := " · ".join(markdown(fact) for fact in (*found.facts, *facts)):
            st.caption(caption)
        if not (found.cause or found.fixes):
            return
        fixes = [prose(fix, found.page) for fix in found.fixes]
        left, right = st.columns(2, gap="medium")
        with left:
            if found.cause:
                st.markdown(f"**{say('cause')}{say('colon')}** {advice(found.cause)}")
            if found.place:
                st.markdown(f"**{say('stacks')}{say('colon')}** {markdown(found.place)}")
            if found.note:
                st.markdown(f"**{say('harm_here')}{say('colon')}** {advice(found.note)}")
            if found.evidence:
                st.code(verbatim("\n".join(found.evidence[-MOST_EVIDENCE:])), language=None, wrap_lines=True)
        with right:
            if fixes:
                st.markdown(f"**{say('fixes')}**")
                # Do not shorten the fixes, because any sentence can name the action.
                st.markdown(numbered(fixes[:_FEW_FIXES]))
        if found.why or found.fixes:
            with st.expander(say("why_and_more")):
                st.markdown(prose(found.why, found.page))
                st.markdown(numbered(fixes))


def numbered(fixes: Iterable[str]) -> str:
    return "\n".join(f"{number}. {fix}" for number, fix in enumerate(fixes, 1))


_MISSING_PAGE = "missing_page"


def missing_page(pages: Mapping[str, StreamlitPage]) -> list[StreamlitPage]:
    """If none of the `pages` has the name in the address, return a hidden page that has this name.

    The browser sends the name only once. Afterward, it sends a number that is derived from the name. The
    page must therefore exist as long as the user's session (streamlit 1.67, PagesManager).
    """
    context = get_script_run_ctx()
    name = context.pages_manager.intended_page_name if context is not None else None
    if name and name not in {page.url_path for page in pages.values()}:
        st.session_state[_MISSING_PAGE] = name.strip("/").replace("/", "-")
    if not (wanted := st.session_state.get(_MISSING_PAGE)):
        return []

    def draw() -> None:
        head(say("no_such_page", unquote(wanted)[:200]))
        st.write(say("no_such_page_next"))
        for known in pages.values():
            st.page_link(known)

    return [st.Page(draw, title="Stallwatch", url_path=wanted, visibility="hidden")]


def offer_download(what: str, text: str | bytes, name: str, kind: str) -> None:
    """Draw a button that downloads `text`. A click on the button does not redraw the page."""
    icon = ":material/download:"
    st.download_button(say(f"download_{what}"), text, name, kind, on_click="ignore", icon=icon)
