"""Draw the catalogue: search rules, read a page, test a pattern on lines, and draft a page for a failure."""

from __future__ import annotations

import streamlit as st

from stallwatch_dashboard import rule_search
from stallwatch_dashboard.data.source import shared
from stallwatch_dashboard.pages.common import (
    catalogue,
    chosen_row,
    head,
    into_address,
    numbered,
    offer_download,
    render,
    say,
)
from stallwatch_dashboard.safetext import cell, escaped_page, markdown, verbatim
from stallwatch_rules import __version__
from stallwatch_rules.authoring.drafting import DraftError
from stallwatch_rules.matching.matcher import Matcher
from stallwatch_rules.messages import bilingual
from stallwatch_rules.pages.catalogue import Catalogue, folder_of_pack, packs_by_rule
from stallwatch_rules.pages.fixes import fixes_for, without_placeholder
from stallwatch_rules.pages.page import RulePage

#: Number of rows in the list: as many as fit into a window, or fewer while a rule page is open.
_ROWS, _ROWS_ABOVE_PAGE = 15, 8


@st.cache_resource(show_spinner=False)
def _matcher(extra: tuple[str, ...]) -> Matcher:
    return Matcher(catalogue(extra))


def _title(page: RulePage) -> str:
    return render(bilingual(page.title, page.title_zh))


def _harm(page: RulePage) -> str:
    return say("judged_by_progress" if page.harm == "by-progress" else f"harm_{page.harm}")


def _chosen(pages: list[RulePage]) -> None:
    """Store the selected rule in the page's address, so that users can share the link."""
    if (chosen := chosen_row("rules_table", pages)) is not None:
        st.query_params["rule"] = chosen.id


def _list(known: Catalogue, extra: tuple[str, ...]) -> None:
    left, right = st.columns([3, 2])
    words = left.text_input(say("find_rule"), st.query_params.get("q", ""), placeholder=say("find_rule_hint"))
    into_address("q", words)
    families = right.multiselect(
        say("family"), rule_search.families(known.pages.values()), placeholder=say("every_family")
    )
    found = rule_search.search(known, _matcher(extra), words, families)
    st.caption(say("rules_found", len(found), len(known.pages)))
    if not found:
        st.info(say("no_rule_found"), icon=":material/search_off:")
        return
    most = _ROWS_ABOVE_PAGE if "rule" in st.query_params else _ROWS
    st.dataframe(
        {
            say("rule"): [page.id for page in found],
            say("rule_title"): [cell(_title(page)) for page in found],
            say("family"): [cell(page.family) for page in found],
            say("role"): [say(f"role_{page.role}") for page in found],
            say("harm"): [_harm(page) for page in found],
            say("maturity"): [say(f"status_{page.status}") for page in found],
        },
        hide_index=True,
        key="rules_table",
        on_select=lambda: _chosen(found),
        selection_mode="single-row",
        height=35 * (min(most, len(found)) + 1) + 3,
        column_config={say("rule_title"): st.column_config.TextColumn(width="large")},
    )
    if "rule" not in st.query_params:
        st.caption(say("open_rule"))


def _section(heading: str, text: str, chinese: str = "") -> None:
    text = render(bilingual(text, chinese))
    if without_placeholder(text):
        st.markdown(f"#### {say(heading)}")
        st.markdown(escaped_page(text))  # the page is a local, reviewed file


def _page(page: RulePage) -> None:
    sections = page.sections
    with st.container(border=True, key="rule-page"):
        st.markdown(f"### {markdown(_title(page))}")
        facts = (page.id, page.family, say(f"role_{page.role}"), _harm(page), say(f"status_{page.status}"))
        st.caption(" · ".join(markdown(fact) for fact in facts))
        _section("what_happened", sections.what, sections.zh_what)
        _section("why", sections.why, sections.zh_why)
        fixes = [render(fix) for fix in fixes_for(page, {})]
        _section("fixes", numbered(fixes))
        _section("when_harmless", sections.harmless)
        with st.expander(say("how_recognised")):
            if page.patterns:
                st.code(verbatim("\n".join(page.patterns)), language=None, wrap_lines=True)
            else:
                st.write(say("judged_rule"))
            for heading, samples in (("fires_on", page.fires), ("quiet_on", page.quiet)):
                st.caption(say(heading))
                for sample in samples:
                    st.code(verbatim(sample), language=None, wrap_lines=True)
        for emitter in page.emitted_by:
            where = " ".join(
                part for part in (emitter.package, emitter.versions, emitter.module, emitter.level) if part
            )
            st.caption(f"{say('printed_by')}: {markdown(where)}")
        for reference in page.references:
            st.caption(markdown(reference))


def _trial() -> None:
    pattern = st.text_input(say("pattern"), key="pattern", placeholder=r"loss scale is (?P<scale>\d+)")
    text = st.text_area(say("lines_to_try"), key="trial_lines", height=200)
    if not pattern or not text:
        st.caption(say("try_next"))
        return
    trial = rule_search.try_pattern(pattern, text)
    if trial.fault is not None:
        st.error(f"{markdown(trial.fault.message)}: {markdown(trial.fault.remedy)}", icon=":material/block:")
        return
    st.caption(say("lines_matched", len(trial.hits), trial.lines))
    if trial.hits:
        names = sorted({name for hit in trial.hits for name in hit.captures})
        st.dataframe(
            {
                say("line_number"): [hit.number for hit in trial.hits],
                **{name: [cell(hit.captures.get(name, "")) for hit in trial.hits] for name in names},
                say("line"): [cell(hit.line) for hit in trial.hits],
            },
            hide_index=True,
        )


def _draft(known: Catalogue) -> None:
    text = st.text_area(say("failed_lines"), key="draft_lines", height=240)
    if not text:
        st.caption(say("draft_next"))
        return
    try:
        proposal = rule_search.draft_of(text, known, since=__version__)
    except DraftError as error:
        st.info(markdown(str(error)), icon=":material/info:")
        return
    path = f"my-rules/{proposal.family}/{proposal.rule}.md"
    st.caption(markdown(say("draft_done", path)))
    st.code(verbatim(proposal.text), language="markdown", wrap_lines=True)
    offer_download("page", proposal.text, f"{proposal.rule}.md", "text/markdown")


head(say("rules"))
_extra = shared().settings.rules
with st.spinner(say("reading_rules")):
    _known = catalogue(_extra)
_browse, _try, _new = st.tabs([say("browse"), say("try_pattern"), say("draft_page")])
with _browse:
    _list(_known, _extra)
    _requested = st.query_params.get("rule", "")
    if _requested in _known.pages:
        _page(_known.pages[_requested])
    elif _pack := packs_by_rule().get(_requested):  # the rule is not loaded, but an agent might link to it
        _page(catalogue((*_extra, str(folder_of_pack(_pack)))).pages[_requested])
    elif _requested:
        st.info(markdown(say("no_such_rule", _requested)), icon=":material/search_off:")
with _try:
    _trial()
with _new:
    _draft(_known)
