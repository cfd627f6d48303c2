"""One chat through Apprise. A channel is one URL, so that each fails, waits and retries by itself."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import apprise
from apprise.plugins.custom_json import NotifyJSON

from stallwatch_alerts.channels.notice import Notice
from stallwatch_alerts.masking import hide_secrets, mask_url

_LEVELS = {
    "failure": apprise.NotifyType.FAILURE,
    "warning": apprise.NotifyType.WARNING,
    "info": apprise.NotifyType.INFO,
    "success": apprise.NotifyType.SUCCESS,
}


# What Apprise said in this context; it may send from a thread of its own, which inherits the context.
_hearing: ContextVar[list[str] | None] = ContextVar("stallwatch_hearing", default=None)


class ChannelError(Exception):
    """What went wrong, without any secret of the URL."""


class AppriseChannel:
    """Delivers notices to one Apprise URL. Used by one thread at a time."""

    def __init__(self, url: str) -> None:
        """`ChannelError` where Apprise does not understand the URL."""
        silence_libraries()
        self.name = mask_url(url)
        self._url = url
        # No image mask: the pictures would be loaded from somewhere else.
        asset = apprise.AppriseAsset(
            app_id="Stallwatch", app_desc="Stallwatch", image_url_mask="", async_mode=False
        )
        with _overheard() as heard:
            plugin = apprise.Apprise.instantiate(url, asset=asset)
        if plugin is None:
            raise ChannelError(self._reason(heard) or "not a URL that Apprise understands")
        self._plugin = plugin
        self._own_fields = dict(plugin.payload_extras) if isinstance(plugin, NotifyJSON) else {}
        self._apprise = apprise.Apprise(asset=asset)
        self._apprise.add(plugin)

    def send(self, notice: Notice) -> None:
        """Deliver, or raise `ChannelError` with the reason."""
        if isinstance(self._plugin, NotifyJSON):
            # The `:key=value` part of a json:// URL, filled in here; what the user wrote there wins.
            self._plugin.payload_extras = {**notice.facts, "text": notice.message.text, **self._own_fields}
        with _overheard() as heard:
            delivered = self._apprise.notify(
                body=notice.message.text,
                title=notice.message.title,
                notify_type=_LEVELS[notice.level],
                body_format=apprise.NotifyFormat.TEXT,
                interpret_escapes=False,
            )
        if not delivered:
            raise ChannelError(self._reason(heard) or "Apprise could not deliver the message")

    def _reason(self, heard: list[str]) -> str:
        return hide_secrets("; ".join(dict.fromkeys(heard)), self._url)


def silence_libraries() -> None:
    """Keep what Apprise and its HTTP library log to ourselves: URLs, and so secrets, stand in it."""
    logger = logging.getLogger("apprise")
    logger.propagate = False
    logger.setLevel(logging.WARNING)
    logger.addHandler(_EAR)
    # "POST /services/<token> HTTP/1.1" would come at DEBUG.
    logging.getLogger("urllib3").setLevel(logging.WARNING)


@contextmanager
def _overheard() -> Iterator[list[str]]:
    heard: list[str] = []
    token = _hearing.set(heard)
    try:
        yield heard
    finally:
        _hearing.reset(token)


class _Ear(logging.Handler):
    """Hears Apprise's warnings: the reason of a refusal is told nowhere else."""

    def emit(self, record: logging.LogRecord) -> None:
        heard = _hearing.get()
        if heard is not None:
            heard.append(record.getMessage().strip())


_EAR = _Ear(logging.WARNING)
