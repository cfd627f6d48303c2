"""An incident in words for a chat, in English or Chinese: ``render(incident, language, page)``."""

from __future__ import annotations

from stallwatch_alerts.messages.compose import Message, ending_line, render, render_test

__all__ = ["Message", "ending_line", "render", "render_test"]
