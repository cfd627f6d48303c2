"""The verdict as both the Run and the Post-mortem page draw it."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from stallwatch_dashboard.pages.common import say
from stallwatch_dashboard.safetext import advice, markdown, prose
from stallwatch_dashboard.verdict import Verdict

_EVIDENCE = 3
_FEW_FIXES = 2


def draw_verdict(found: Verdict, *, icon: str = "", facts: Sequence[str] = ()) -> None:
    """What is wrong, what it means here and what to change first; the rest on demand."""
    with st.container(border=True, key=f"verdict-{found.level}"):
        st.markdown(f"#### {icon} {markdown(found.headline)}")
        if told := " · ".join(markdown(fact) for fact in (*found.facts, *facts)):
            st.caption(told)
        if not found.cause:
            return
        left, right = st.columns(2, gap="medium")
        with left:
            st.markdown(f"**{say('cause')}:** {advice(found.cause)}")
            if found.note:
                st.markdown(f"**{say('harm_here')}:** {advice(found.note)}")
            if found.evidence:
                st.code("\n".join(found.evidence[-_EVIDENCE:]), language=None, wrap_lines=True)
        with right:
            if found.fixes:
                st.markdown(f"**{say('fixes')}**")
                st.markdown(_numbered(found, 0, _FEW_FIXES))
        if found.why or len(found.fixes) > _FEW_FIXES:
            with st.expander(say("why_and_more")):
                st.markdown(prose(found.why, found.page))
                st.markdown(_numbered(found, _FEW_FIXES, None))


def _numbered(found: Verdict, first: int, last: int | None) -> str:
    fixes = found.fixes[first:last]
    return "\n".join(f"{number}. {prose(fix, found.page)}" for number, fix in enumerate(fixes, first + 1))
