"""Draw all charts of a run in one frame and update them in place.

``st.plotly_chart`` creates a new chart whenever a value is added, which resets the zoom and makes the page
flicker (docs/decisions/0008). This component keeps the charts and updates their data.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

import streamlit as st
import streamlit.components.v1 as components

from stallwatch_dashboard.charts.base import Drawing
from stallwatch_dashboard.words import Say

# The second component is never drawn. It serves plotly.min.js from the Python package to the first component.
_board = components.declare_component("board", path=Path(__file__).with_name("board_frontend"))
_plotly = components.declare_component("plotly", path=Path(str(files("plotly"))) / "package_data")


def draw_board(
    charts: Sequence[tuple[str, str, Drawing]], *, key: str, say: Say, wide: Sequence[str] = ()
) -> str | None:
    """Draw the charts, two per row. Charts whose keys are in `wide` use the full width.

    A component with the same `key` keeps its charts and their zoom. If the user clicked the name of an
    incident, return the ID of the incident, once for each click.
    """
    specs = [
        {
            "key": name,
            "title": title,
            "figure": figure.to_json(),
            "wide": name in wide,
            "height": figure.layout.get("height"),
        }
        for name, title, figure in charts
    ]
    clicked = _board(charts=specs, words={"undo_zoom": say("undo_zoom")}, key=key)
    if not clicked or clicked["at"] == st.session_state.get("board_click"):
        return None
    st.session_state["board_click"] = clicked["at"]
    return str(clicked["incident"])
