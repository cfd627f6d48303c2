"""How bad a message is, for the eye: one sign and one colour per level."""

from __future__ import annotations

from stallwatch_alerts.notice import Notice

_SIGNS = {"failure": "🔴", "warning": "🟠", "info": "🔵", "success": "🟢"}
COLOURS = {"failure": 0xD92D20, "warning": 0xF79009, "info": 0x2E90FA, "success": 0x12B76A}


def headline(notice: Notice) -> str:
    """The title behind its sign."""
    return f"{_SIGNS[notice.level]} {notice.message.title}"
