"""In front of Streamlit's own address for uploads: from whom it takes files, and how much in all.

Streamlit takes a file from any open session, one that has not signed in included, and keeps it in memory
(streamlit 1.67, web/server/starlette/starlette_routes.py). Here a session may send files once a page offered
it to, and all sessions together may keep so much.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

_PATH = re.compile(r"/_stcore/upload_file/(?P<session>[^/]+)/(?P<file>[^/]+)$")


class Ledger:
    """Which sessions may send files, and how many bytes each keeps here."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: dict[str, dict[str, int]] = {}

    def open_for(self, session: str) -> None:
        with self._lock:
            self._kept.setdefault(session, {})

    def take(self, session: str, file: str, size: int, most: int, alive: Callable[[str], bool]) -> int:
        """Note a file that is about to come; the HTTP status of a refusal, or 0 to let it in."""
        with self._lock:
            if session not in self._kept:
                return 403
            for gone in [one for one in self._kept if one != session and not alive(one)]:
                del self._kept[gone]
            kept = sum(sum(files.values()) for files in self._kept.values())
            if kept - self._kept[session].get(file, 0) + size > most:
                return 413
            self._kept[session][file] = size
            return 0

    def drop(self, session: str, file: str) -> None:
        with self._lock:
            self._kept.get(session, {}).pop(file, None)


LEDGER = Ledger()  #: of this process


class UploadGate:
    def __init__(
        self, app: ASGIApp, ledger: Ledger, most: int, alive: Callable[[str], bool] = lambda _session: True
    ) -> None:
        self._app = app
        self._ledger = ledger
        self._most = most  #: bytes that all sessions may keep together
        self._alive = alive

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        found = _PATH.search(scope["path"]) if scope["type"] == "http" else None
        if found is None or scope["method"] not in ("PUT", "POST", "DELETE"):
            await self._app(scope, receive, send)
            return
        session, file = found["session"], found["file"]
        if scope["method"] == "DELETE":
            self._ledger.drop(session, file)
            await self._app(scope, receive, send)
            return
        size = _length(scope)
        if size is None:
            await _refuse(send, 411)
            return
        if status := self._ledger.take(session, file, size, self._most, self._alive):
            await _refuse(send, status)
            return
        status = 0

        async def watched(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        try:
            await self._app(scope, receive, watched)
        finally:
            if not 200 <= status < 300:
                self._ledger.drop(session, file)


def _length(scope: Scope) -> int | None:
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit():
            return int(value)
    return None


async def _refuse(send: Send, status: int) -> None:
    words = {
        403: b"this session may not upload",
        411: b"the length of the upload is missing",
        413: b"the dashboard holds as many uploads as [dashboard] max_uploads_mb allows; try again later",
    }[status]
    headers = [(b"content-type", b"text/plain"), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": words})
