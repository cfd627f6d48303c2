"""Define the ASGI middleware that checks hostnames, redirects guessed addresses, and controls caching."""

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

#: Pages by alias. An alias is in lowercase and contains no hyphens or underscores. The page "" is the first
#: page, which has no path.
_MEANT = {
    **dict.fromkeys(("runs", "home", "index", "index.html", "dashboard"), ""),
    **dict.fromkeys(("run", "job", "training"), "run"),
    **dict.fromkeys(("incidents", "incident", "alerts", "alert"), "incidents"),
    **dict.fromkeys(("postmortem", "postmortems", "diagnose", "diagnosis", "upload"), "postmortem"),
    **dict.fromkeys(("reports", "report"), "postmortem"),
    **dict.fromkeys(("rules", "rule", "catalogue", "catalog"), "rules"),
    **dict.fromkeys(("health", "status"), "health"),
}
#: For each page, the query parameter that is set to the remaining path.
_FURTHER = {"": "run", "run": "run", "incidents": "incident", "postmortem": "report", "rules": "rule"}
#: Paths that Streamlit serves (1.67, web/server/starlette), or that browsers and probes request on any site.
_SERVED = ("_stcore", "static", "media", "component", "app", "auth", "oauth2callback", ".well-known")


def redirect_target(path: str, query: str = "") -> str | None:
    """Return the address to redirect to, or None if no redirect is needed.

    No redirect is needed for the path of a page, or for a path that people do not type.
    """
    parts = [part for part in path.split("/") if part]
    if not parts or parts[0] in _SERVED:
        return None
    meant = _MEANT.get(re.sub("[-_]", "", parts[0].casefold()))
    if len(parts) == 1 and meant in (None, parts[0]):
        return None
    params = parse_qsl(query, keep_blank_values=True)
    further = "/".join(parts[1:])
    if meant is None:
        name = quote(parts[0], safe="")
    elif meant == "" and (further or any(key == "run" for key, _ in params)):
        name = "run"  # the page of a single run, not the page of all runs
    else:
        name = meant
    if further and (key := _FURTHER.get(meant) if meant is not None else None):
        params = [(key, further), *((field, value) for field, value in params if field != key)]
    return f"/{name}" + (f"?{urlencode(params)}" if params else "")


#: Other sites must not show the pages of Stallwatch in a frame, because users could be tricked into
#: clicking invisible controls. The pages themselves show charts in frames, so 'self' is allowed. The referrer
#: policy is not "no-referrer", because browsers would then send forms with ``Origin: null``.
_PROTECTION = {
    "content-security-policy": "frame-ancestors 'self'",
    "x-frame-options": "SAMEORIGIN",
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
}


class OwnHosts:
    """Accepts requests and WebSockets only for configured hostnames, and none from other sites' pages.

    Streamlit accepts any WebSocket whose Host and Origin are the same (1.67, starlette_websocket.py), and the
    option ``server.allowedHosts`` cannot allow every IP address.
    """

    def __init__(self, app: ASGIApp, configured: Collection[str], url: str) -> None:
        self._app = app
        self._configured = configured
        self._url = url

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward the request, or respond with the reason why it is refused."""
        if scope["type"] in ("http", "websocket"):
            headers = MutableHeaders(scope=scope)
            hosts, origins = headers.getlist("host"), headers.getlist("origin")
            # This runs in a thread because an unknown hostname can require a DNS query.
            refusal = await run_in_threadpool(refusal_of, hosts, origins, self._configured, url=self._url)
            answer = self._app
            if refusal is not None:
                answer = PlainTextResponse(f"{refusal.reason}\n", refusal.status)
            elif origins:  # Streamlit requires equal Host and Origin headers, but a proxy can change Host
                headers["host"] = origins[0].partition("://")[2]
            await answer(scope, receive, _protected(send))
            return
        await self._app(scope, receive, send)


def _protected(send: Send) -> Send:
    """Return a send function that adds security headers to each response."""

    async def protected(message: Message) -> None:
        if message["type"] in ("http.response.start", "websocket.http.response.start"):
            MutableHeaders(scope=message).update(_PROTECTION)
        await send(message)

    return protected


class Redirects:
    """Redirects a guessed address to the right page and forwards all other requests.

    For an unknown page name, Streamlit shows its first page below a message in English. For a path with
    several parts, Streamlit 1.67 shows an empty page, because it looks for the frontend's files relative to
    the path. Such requests are redirected before they reach Streamlit.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        target = None
        navigates = scope["type"] == "http" and scope["method"] in ("GET", "HEAD")
        if navigates and "text/html" in Headers(scope=scope).get("accept", ""):
            target = redirect_target(scope["path"], scope.get("query_string", b"").decode("latin-1"))
        answer = self._app if target is None else RedirectResponse(target)
        await answer(scope, receive, send)


_LARGE = "/plotly.min.js"


class PlotlyCache:
    """Sends the Plotly script with a version tag, and only to browsers that do not have this version.

    Streamlit sends the files of components without a validator (1.67, starlette_routes.py), so every visit to
    a Run page would repeat the download and decompression of the five megabytes of Plotly. All versions have
    the same address, so a browser stores the script but revalidates it on each use.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._version = f'"plotly-{version("plotly")}"'

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward the request and add the version tag to the response with the Plotly script.

        If the browser has this version, send no body.
        """
        if scope["type"] != "http" or not scope["path"].endswith(_LARGE):
            await self._app(scope, receive, send)
            return
        # The ETag is weak, because it identifies both the compressed and the uncompressed script.
        marks = {"cache-control": "public, no-cache", "etag": f"W/{self._version}"}
        if self._version in Headers(scope=scope).get("if-none-match", ""):
            await Response(status_code=304, headers=marks)(scope, receive, send)
            return

        async def marked(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] == 200:
                MutableHeaders(scope=message).update(marks)
            await send(message)

        await self._app(scope, receive, marked)
