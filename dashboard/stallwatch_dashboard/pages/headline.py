"""The verdict as both the Run and the Post-mortem page draw it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import streamlit as st

from stallwatch_dashboard.pages.common import say
from stallwatch_dashboard.safetext import advice, first_sentence, markdown, prose, verbatim
from stallwatch_dashboard.verdict import Verdict

MOST_EVIDENCE = 3  #: lines
_FEW_FIXES = 3


def draw_verdict(found: Verdict, *, icon: str = "", facts: Sequence[str] = ()) -> None:
    """What is wrong, what it means here and what to change first; the rest on demand."""
    with st.container(border=True, key=f"verdict-{found.level}"):
        st.markdown(f"### {icon} {markdown(found.headline)}")
        if told := " · ".join(markdown(fact) for fact in (*found.facts, *facts)):
            st.caption(told)
        if not found.cause:
            return
        first = found.fixes[:_FEW_FIXES]
        left, right = st.columns(2, gap="medium")
        with left:
            st.markdown(f"**{say('cause')}:** {advice(found.cause)}")
            if found.place:
                st.markdown(f"**{say('stacks')}:** {markdown(found.place)}")
            if found.note:
                st.markdown(f"**{say('harm_here')}:** {advice(found.note)}")
            if found.evidence:
                st.code(verbatim("\n".join(found.evidence[-MOST_EVIDENCE:])), language=None, wrap_lines=True)
        with right:
            if first:
                st.markdown(f"**{say('fixes')}**")
                st.markdown(_numbered(first_sentence(prose(fix, found.page)) for fix in first))
        if found.why or found.fixes:
            with st.expander(say("why_and_more")):
                st.markdown(prose(found.why, found.page))
                st.markdown(_numbered(prose(fix, found.page) for fix in found.fixes))


def _numbered(fixes: Iterable[str]) -> str:
    return "\n".join(f"{number}. {fix}" for number, fix in enumerate(fixes, 1))
