"""ASGI middleware around Streamlit: under which names it answers, addresses that people guess, and what
browsers may keep."""

from __future__ import annotations

import re
from collections.abc import Collection
from importlib.metadata import version
from urllib.parse import parse_qsl, quote, urlencode

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from stallwatch_exporter.serving.hosts import refusal_of

#: Pages by other names, written small and without - and _; "" is the first page, which has the bare address.
_MEANT = {
    **dict.fromkeys(("runs", "home", "index", "index.html", "dashboard"), ""),
    **dict.fromkeys(("run", "job", "training"), "run"),
    **dict.fromkeys(("incidents", "incident", "alerts", "alert"), "incidents"),
    **dict.fromkeys(("postmortem", "postmortems", "diagnose", "diagnosis", "upload"), "postmortem"),
    **dict.fromkeys(("reports", "report"), "postmortem"),
    **dict.fromkeys(("rules", "rule", "catalogue", "catalog"), "rules"),
    **dict.fromkeys(("health", "status"), "health"),
}
#: What a further part of the path names there.
_FURTHER = {"": "run", "run": "run", "incidents": "incident", "postmortem": "report", "rules": "rule"}
#: What Streamlit serves itself (1.67, web/server/starlette), and what browsers and probes ask every host for.
_SERVED = ("_stcore", "static", "media", "component", "app", "auth", "oauth2callback", ".well-known")


def led_to(path: str, query: str = "") -> str | None:
    """The address to go to instead; None where the path is a page's own, or none that a person types."""
    parts = [part for part in path.split("/") if part]
    if not parts or parts[0] in _SERVED:
        return None
    meant = _MEANT.get(re.sub("[-_]", "", parts[0].casefold()))
    if len(parts) == 1 and meant in (None, parts[0]):
        return None
    asked = parse_qsl(query, keep_blank_values=True)
    further = "/".join(parts[1:])
    if meant is None:
        name = quote(parts[0], safe="")
    elif meant == "" and (further or any(key == "run" for key, _ in asked)):
        name = "run"  # the page of one run, not that of all
    else:
        name = meant
    if further and (key := _FURTHER.get(meant) if meant is not None else None):
        asked = [(key, further), *((one, value) for one, value in asked if one != key)]
    return f"/{name}" + (f"?{urlencode(asked)}" if asked else "")


#: No page of another site may show ours in a frame, where people would click on what they do not see. Our
#: charts are in frames of our own pages. With "no-referrer", forms would be sent with ``Origin: null``.
_PROTECTION = {
    "content-security-policy": "frame-ancestors 'self'",
    "x-frame-options": "SAMEORIGIN",
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
}


class OwnHosts:
    """Answers requests and websockets only under our own names, and only for pages of our own.

    Streamlit lets a websocket in if its Host and Origin are the same, whatever they are (1.67,
    starlette_websocket.py), and its ``server.allowedHosts`` cannot allow every IP address.
    """

    def __init__(self, app: ASGIApp, configured: Collection[str], url: str) -> None:
        self._app = app
        self._configured = configured
        self._url = url

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hand on, or answer with the reason for the refusal."""
        if scope["type"] in ("http", "websocket"):
            headers = MutableHeaders(scope=scope)
            hosts, origins = headers.getlist("host"), headers.getlist("origin")
            # In a thread: an unknown name may cost a question to a name server.
            refusal = await run_in_threadpool(refusal_of, hosts, origins, self._configured, url=self._url)
            answer = self._app
            if refusal is not None:
                answer = PlainTextResponse(f"{refusal.reason}\n", refusal.status)
            elif origins:  # Streamlit compares both letter by letter; proxies send other ports or names
                headers["host"] = origins[0].partition("://")[2]
            await answer(scope, receive, _protected(send))
            return
        await self._app(scope, receive, send)


def _protected(send: Send) -> Send:
    """Add the headers that protect the reader's browser to each answer."""

    async def protected(message: Message) -> None:
        if message["type"] in ("http.response.start", "websocket.http.response.start"):
            MutableHeaders(scope=message).update(_PROTECTION)
        await send(message)

    return protected


class Redirects:
    """Leads a person's browser to the page that an address means; everything else passes.

    Streamlit shows its first page for a name that it does not know, under a box in English, and nothing at
    all for a path of several parts (1.67: the files of the frontend are looked for beside it). So both are
    led elsewhere before Streamlit sees them.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        there = None
        asked = scope["type"] == "http" and scope["method"] in ("GET", "HEAD")
        if asked and "text/html" in Headers(scope=scope).get("accept", ""):
            there = led_to(scope["path"], scope.get("query_string", b"").decode("latin-1"))
        answer = self._app if there is None else RedirectResponse(there)
        await answer(scope, receive, send)


_LARGE = "/plotly.min.js"


class PlotlyCache:
    """Marks Plotly's script with its version, and sends it only to browsers that lack it.

    Streamlit sends the files of components without a mark to ask by (1.67, starlette_routes.py), so every
    visit of a Run page would fetch and unpack the five megabytes of Plotly again. Its address is the same
    whatever its version: a browser keeps it, and asks each time whether it is still this one.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._version = f'"plotly-{version("plotly")}"'

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hand on, with other headers where it is that script; without its body for who has it."""
        if scope["type"] != "http" or not scope["path"].endswith(_LARGE):
            await self._app(scope, receive, send)
            return
        # Weak: packed or not, it is the same script.
        marks = {"cache-control": "public, no-cache", "etag": f"W/{self._version}"}
        if self._version in Headers(scope=scope).get("if-none-match", ""):
            await Response(status_code=304, headers=marks)(scope, receive, send)
            return

        async def marked(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] == 200:
                MutableHeaders(scope=message).update(marks)
            await send(message)

        await self._app(scope, receive, marked)
