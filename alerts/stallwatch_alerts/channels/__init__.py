"""Ways to people. Each takes a ``Notice`` and says whether it arrived."""

from __future__ import annotations

from stallwatch_alerts.channels.notice import Notice, incident_notice, test_notice

__all__ = ["Notice", "incident_notice", "test_notice"]
