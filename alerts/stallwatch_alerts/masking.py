"""Chat URLs for people's eyes: enough to tell which one is meant, nothing that is a secret."""

from __future__ import annotations

import re
from urllib.parse import unquote

# In these the host is an address; elsewhere (slack://TokenA/…) the place of the host may hold a token.
_HOST_IS_NO_SECRET = {"http", "https", "json", "jsons", "xml", "xmls", "form", "forms"}
_URL = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://(?:[^/?#@]*@)?(?P<host>[^/?#]*)")
_SHORTEST_SECRET = 6


def mask_url(url: str) -> str:
    """``slack://TokenA/TokenB`` as ``slack://****``; a webhook of one's own as ``json://host:port/****``."""
    found = _URL.match(url.strip())
    if found is None:
        return "****"
    scheme = found["scheme"].lower()
    if scheme in _HOST_IS_NO_SECRET and found["host"]:
        return f"{scheme}://{found['host']}/****"
    return f"{scheme}://****"


def hide_secrets(text: str, url: str) -> str:
    """The text without the URL or any longer piece of it, for what a library says about a failure."""
    _, _, rest = url.partition("://")
    pieces = [url, rest, *re.split(r"[/?#@&=:,]+", rest)]
    pieces += [unquote(piece) for piece in pieces]
    masked = mask_url(url)
    for piece in sorted(pieces, key=len, reverse=True):
        if len(piece) >= _SHORTEST_SECRET and piece not in masked:
            text = text.replace(piece, "****")
    return text
