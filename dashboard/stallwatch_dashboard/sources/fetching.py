"""One GET of a metrics page, with bounds on time and size: what answers may be anything."""

from __future__ import annotations

import time
import urllib.error
import urllib.request
from typing import Any
from urllib.parse import urlsplit

MOST_BYTES = 8 * 1024 * 1024
MOST_SECONDS = 3.0  #: for the whole answer
_SOCKET_SECONDS = 1.5


class FetchError(Exception):
    """Why there is no page, in words for the reader."""


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_args: Any, **_kwargs: Any) -> None:
        return None


# No proxy: agents are on this host or in its network, whatever the environment says about the way out.
_opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirect())


def endpoint(target: str) -> str:
    """The metrics address of a target written as "node7:19400", "http://node7:19400" or in full."""
    url = target if "://" in target else f"http://{target}"
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise FetchError(f"{target}: not an http address")
    return url if parts.path not in ("", "/") else f"{parts.scheme}://{parts.netloc}/metrics"


def fetch(url: str, *, most_bytes: int = MOST_BYTES, most_seconds: float = MOST_SECONDS) -> str:
    """The text of the page at `url`. Raises `FetchError`."""
    if urlsplit(url).scheme not in ("http", "https"):
        raise FetchError("not an http address")
    deadline = time.monotonic() + most_seconds
    request = urllib.request.Request(
        url, headers={"Accept": "text/plain;version=0.0.4", "User-Agent": "stallwatch"}
    )
    try:
        with _opener.open(request, timeout=_SOCKET_SECONDS) as answer:
            if "html" in (answer.headers.get("Content-Type") or ""):
                raise FetchError("answers with a web page instead of metrics")
            return _body(answer, deadline, most_bytes).decode("utf-8", "replace")
    except urllib.error.HTTPError as error:
        raise FetchError(f"answers HTTP {error.code}") from error
    except FetchError:
        raise
    except Exception as error:  # refused, reset, timed out, bad headers, bad addresses: all mean no page
        raise FetchError(
            f"does not answer ({getattr(error, 'reason', None) or type(error).__name__})"
        ) from error


def _body(answer: Any, deadline: float, most_bytes: int) -> bytes:
    """Read in small bites: a server that drips would else hold a thread for ever."""
    chunks: list[bytes] = []
    size = 0
    while chunk := answer.read1(64 * 1024):
        size += len(chunk)
        if size > most_bytes:
            raise FetchError(f"sends more than {most_bytes // 1024**2} MiB")
        if time.monotonic() > deadline:
            raise FetchError("is too slow")
        chunks.append(chunk)
    return b"".join(chunks)
