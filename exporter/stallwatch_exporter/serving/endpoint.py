"""Answers a scrape: in the two formats that scrapers ask for by ourselves, everything else by the library."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterable
from typing import Any
from urllib.parse import parse_qs

from prometheus_client.exposition import choose_encoder, gzip_accepted

from stallwatch_exporter.serving.lastlook import WSGIApp
from stallwatch_exporter.serving.registry import RunRegistry

_QUICKLY = (
    1  # a page shrinks to a twelfth with 1, to a sixteenth with the library's 9, which takes far longer
)
# How names are escaped that are not of the old kind. Ours are: these leave them as they are, others do not.
_HARMLESS = ("", "underscores", "allow-utf-8")


class Endpoint:
    """Wraps the application that ``prometheus_client`` serves a registry with."""

    def __init__(self, app: WSGIApp, registry: RunRegistry) -> None:
        self._app = app
        self._registry = registry

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        """The page; whatever is not simply that is asked of the wrapped application."""
        _, content_type = choose_encoder(environ.get("HTTP_ACCEPT") or "")
        simple = environ["REQUEST_METHOD"] == "GET" and environ.get("PATH_INFO") != "/favicon.ico"
        some = "name[]" in parse_qs(environ.get("QUERY_STRING", ""))
        if not simple or some or not is_known(content_type):
            return self._app(environ, start_response)
        page = self._registry.page(open_metrics=_is_open(content_type))
        headers = [("Content-Type", content_type)]
        if gzip_accepted(environ.get("HTTP_ACCEPT_ENCODING", "")):
            page = gzip.compress(page, _QUICKLY)
            headers.append(("Content-Encoding", "gzip"))
        start_response("200 OK", headers)
        return [page]


def is_known(content_type: str) -> bool:
    """Whether our page is what the library would answer under this content type."""
    kind, *options = [part.strip() for part in content_type.split(";")]
    given = dict(option.split("=", 1) for option in options if "=" in option)
    versions = ("1.0.0",) if _is_open(kind) else ("0.0.4", "1.0.0")
    return given.get("version") in versions and given.get("escaping", "") in _HARMLESS


def _is_open(content_type: str) -> bool:
    return content_type.startswith("application/openmetrics-text")
