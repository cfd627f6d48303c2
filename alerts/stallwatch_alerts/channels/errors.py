"""Why a chat did not take a message."""

from __future__ import annotations


class ChannelError(Exception):
    """What went wrong, without any secret of the URL; never raised with another exception behind it.

    Exceptions of HTTP libraries hold the URL, so they must not hang on the chain that a traceback prints.
    """

    def __init__(
        self, reason: str, *, chat: str = "", code: str = "", retry_after: float | None = None
    ) -> None:
        super().__init__(reason)
        self.chat = chat  #: such as "feishu"; see ``remedies``
        self.code = (
            code  #: the chat's own error code, "http-404", or what failed below HTTP: "dns", "timeout"
        )
        self.retry_after = retry_after  #: seconds for which the chat asked to be left alone
