"""What a sender needs of a chat."""

from __future__ import annotations

from typing import Protocol

from stallwatch_alerts.channels.notice import Notice


class Channel(Protocol):
    """Where notices go; see ``channels``."""

    name: str

    def send(self, notice: Notice) -> None:
        """Deliver, or raise with a reason that holds no secret.

        The exception may have an attribute ``retry_after``: the seconds for which the chat asked to be left
        alone, or ``None``.
        """


class EditingChannel(Channel, Protocol):
    """A channel that may be able to edit what it sent."""

    def has_message(self, incident: str) -> bool:
        """Whether it sent a message of this open incident that can be edited."""

    def edit(self, notice: Notice) -> None:
        """Bring that message up to date, or raise."""


def apprise_channel(url: str) -> Channel:
    """The chat behind an Apprise URL. The import takes half a second: only who has URLs pays for it."""
    try:
        from stallwatch_alerts.channels.apprise_channel import AppriseChannel
    except ModuleNotFoundError as error:
        raise RuntimeError(f"{error.name} is not installed; pip install 'stallwatch[alerts]'") from error
    return AppriseChannel(url)


def retry_after(error: Exception) -> float | None:
    """The seconds for which the chat asked to be left alone."""
    asked = getattr(error, "retry_after", None)
    return float(asked) if isinstance(asked, (int, float)) and asked >= 0 else None
