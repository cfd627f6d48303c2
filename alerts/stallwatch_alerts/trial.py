"""Implement ``stallwatch alerts test``: send one message to every URL and report the result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stallwatch_alerts.channels.apprise_channel import AppriseChannel
from stallwatch_alerts.channels.errors import ChannelError, remedy
from stallwatch_alerts.masking import mask_url
from stallwatch_alerts.notice import test_notice


@dataclass(frozen=True)
class Delivery:
    """The result of sending a test message to one URL."""

    url: str  #: the masked URL
    delivered: bool
    reason: str = ""  #: reason for the failure, without secrets
    remedy: str = ""  #: how to fix the failure, if known


def test_message(urls: Sequence[str], language: str) -> list[Delivery]:
    """Send one test message to each URL. A failure for one URL does not affect the other URLs."""
    return [_try(url, language) for url in urls]


def _try(url: str, language: str) -> Delivery:
    try:
        AppriseChannel(url).send(test_notice(language))
    except ChannelError as error:
        return Delivery(mask_url(url), False, str(error), remedy(error.chat, error.code, language))
    except Exception as error:
        return Delivery(mask_url(url), False, str(error) or type(error).__name__)
    return Delivery(mask_url(url), True)
