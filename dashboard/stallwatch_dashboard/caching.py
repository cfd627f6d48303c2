"""What browsers may keep of the pages' parts.

Streamlit sends the files of components without a lifetime or a mark to ask by (1.67, starlette_routes.py), so
every visit of a Run page would fetch, unpack and compile the five megabytes of Plotly again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

_LARGE = "/plotly.min.js"
_LIFETIME = b"public, max-age=86400"


class Lasting:
    """ASGI middleware that gives Plotly's script a lifetime of a day."""

    def __init__(self, app: Application) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hand on, with another header where it is that script."""
        if scope["type"] != "http" or not scope["path"].endswith(_LARGE):
            await self._app(scope, receive, send)
            return

        async def lasting(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start" and message["status"] == 200:
                others = [pair for pair in message["headers"] if pair[0].lower() != b"cache-control"]
                message = {**message, "headers": [*others, (b"cache-control", _LIFETIME)]}
            await send(message)

        await self._app(scope, receive, lasting)
