"""The address that somebody asked for before signing in: the provider sends everybody back to the first page.

Streamlit's way back always leads to its root (1.67, web/server/starlette/starlette_auth_routes.py), so the
browser keeps the address, for this tab alone, and goes there once the person is let in.
"""

from __future__ import annotations

import streamlit as st

_KEEP = """
export default function ({ data }) {
  const here = location.pathname + location.search;
  if (here === data.root || here === data.root + "/") sessionStorage.removeItem("stallwatch-wanted");
  else sessionStorage.setItem("stallwatch-wanted", here);
}
"""
# What was kept names no host, so that no link leads through the sign-in to somewhere else. Whoever has gone
# on from the first page by the time this runs is not led away.
_GO = """
export default function ({ data }) {
  const wanted = sessionStorage.getItem("stallwatch-wanted");
  sessionStorage.removeItem("stallwatch-wanted");
  const atRoot = location.pathname === data.root || location.pathname === data.root + "/";
  if (wanted !== null && atRoot) location.replace(location.origin + wanted);
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
    base = str(st.get_option("server.baseUrlPath") or "").strip("/")
    draw(key=name, data={"root": f"/{base}" if base else ""})
