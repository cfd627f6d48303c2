"""Restrict the files that Streamlit accepts, by session and by total size.

Streamlit accepts a file from any open session, even without a login, and keeps the file in memory (streamlit
1.67, web/server/starlette/starlette_routes.py). With this module, a session can send files only after a page
has offered an upload to the session. The files of all sessions together have a size limit.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_PATH = re.compile(r"/_stcore/upload_file/(?P<session>[^/]+)/(?P<file>[^/]+)$")


class UploadSessions:
    """Records the sessions that can send files, and the number of bytes that each session stores."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: dict[str, dict[str, int]] = {}

    def open_for(self, session: str) -> None:
        with self._lock:
            self._kept.setdefault(session, {})

    def take(self, session: str, file: str, size: int, most: int, alive: Callable[[str], bool]) -> int:
        """Register a file before it is received. Return 0 to accept it, or the HTTP status of the refusal."""
        with self._lock:
            if session not in self._kept:
                return 403
            for other in [other for other in self._kept if other != session and not alive(other)]:
                del self._kept[other]
            kept = sum(sum(files.values()) for files in self._kept.values())
            if kept - self._kept[session].get(file, 0) + size > most:
                return 413
            self._kept[session][file] = size
            return 0

    def drop(self, session: str, file: str) -> None:
        with self._lock:
            self._kept.get(session, {}).pop(file, None)


LEDGER = UploadSessions()  #: the sessions of this process
_REFUSALS = {
    403: "this session has no permission to upload files",
    411: "the request has no Content-Length header",
    413: "all uploads together would exceed [dashboard] max_uploads_mb; try again later",
}


class UploadGate:
    def __init__(self, app: ASGIApp, ledger: UploadSessions, most: int, alive: Callable[[str], bool]) -> None:
        self._app = app
        self._ledger = ledger
        self._most = most  #: maximum number of bytes that all sessions together can store
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
        length = Headers(scope=scope).get("content-length", "")
        refusal = 411
        if length.isdecimal():
            refusal = self._ledger.take(session, file, int(length), self._most, self._alive)
        if refusal:
            answer = PlainTextResponse(_REFUSALS[refusal], refusal, {"connection": "close"})
            await answer(scope, receive, send)
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
