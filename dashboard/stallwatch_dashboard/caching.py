"""What browsers may keep of the pages' parts.

Streamlit sends the files of components without a mark to ask by (1.67, starlette_routes.py), so every visit
of a Run page would fetch and unpack the five megabytes of Plotly again. Its address is the same whatever its
version: a browser keeps it, and asks each time whether it is still this one.
"""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

_LARGE = "/plotly.min.js"
_ASK = (b"cache-control", b"public, no-cache")


class Lasting:
    """ASGI middleware that marks Plotly's script with its version, and sends it to those that lack it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._version = f'"plotly-{version("plotly")}"'.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hand on, with other headers where it is that script; without its body for who has it."""
        if scope["type"] != "http" or not scope["path"].endswith(_LARGE):
            await self._app(scope, receive, send)
            return
        mark = (b"etag", b"W/" + self._version)  # weak: packed or not, it is the same script
        if any(name == b"if-none-match" and self._version in value for name, value in scope["headers"]):
            await send({"type": "http.response.start", "status": 304, "headers": [_ASK, mark]})
            await send({"type": "http.response.body", "body": b""})
            return

        async def marked(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] == 200:
                others = [pair for pair in message["headers"] if pair[0].lower() not in (_ASK[0], mark[0])]
                message = {**message, "headers": [*others, _ASK, mark]}
            await send(message)

        await self._app(scope, receive, marked)
