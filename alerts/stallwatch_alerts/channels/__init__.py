"""Define the channels, which send notifications to chats."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stallwatch_alerts.notice import Channel


def open_channel(url: str) -> Channel:
    """Return the channel for an Apprise URL. The first call imports Apprise, which takes half a second."""
    try:
        from stallwatch_alerts.channels.apprise_channel import AppriseChannel
    except ModuleNotFoundError as error:
        raise RuntimeError(f"{error.name} is not installed; run pip install 'stallwatch[alerts]'") from error
    return AppriseChannel(url)
