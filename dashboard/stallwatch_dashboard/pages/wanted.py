"""The address that somebody asked for before signing in: the provider sends everybody back to the first page.

Streamlit's way back always leads to its root (1.67, web/server/starlette/starlette_auth_routes.py), so the
browser keeps the address, for this tab alone, and goes there once the person is let in.
"""

from __future__ import annotations

import streamlit as st

_KEEP = """
export default function () {
  sessionStorage.setItem("stallwatch-wanted", location.pathname + location.search);
}
"""
# What was kept names no host, so that no link leads through the sign-in to somewhere else.
_GO = """
export default function () {
  const wanted = sessionStorage.getItem("stallwatch-wanted");
  if (wanted === null) return;
  sessionStorage.removeItem("stallwatch-wanted");
  if (wanted !== location.pathname + location.search) location.replace(location.origin + wanted);
}
"""


def keep_address() -> None:
    """Have the browser keep the address that it shows, under the button that signs in."""
    _run("stallwatch_keep_address", _KEEP)


def go_to_address() -> None:
    """Lead a person who was just let in to the address that was asked for."""
    _run("stallwatch_go_to_address", _GO)


def _run(name: str, script: str) -> None:
    draw = st.components.v2.component(name, html="<span hidden></span>", js=script, isolate_styles=False)
    draw(key=name)
