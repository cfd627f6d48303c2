"""Mask chat URLs for display, so that users recognize the URLs but see no secrets."""

from __future__ import annotations

import re
from collections.abc import Iterator
from urllib.parse import quote, unquote

from stallwatch_rules.text.lazy import lazy

# With these schemes, the host is an address. With other schemes (slack://TokenA/…), it can be a token.
_HOST_IS_NO_SECRET = {"http", "https", "json", "jsons", "xml", "xmls", "form", "forms"}
_URL = lazy(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://(?P<rest>.*)", re.DOTALL)
_HOST = lazy(r"(?:[A-Za-z0-9_.-]+|\[[0-9A-Fa-f:.]+\])(?::\d{1,5})?")
_SHORTEST_SECRET = 6
_MASK = "****"


def mask_url(url: str) -> str:
    """Return a URL without secrets: ``slack://****``, or ``json://host:port/****`` for a generic webhook."""
    found = _URL.match(url.strip())
    if found is None:
        return _MASK
    scheme = found["scheme"].lower()
    # An @ after the first slash can end a password that contains a slash. The text before that slash is then
    # not a host.
    place, *path = re.split(r"[/?#]", found["rest"], maxsplit=1)
    host = place.rpartition("@")[2]
    doubtful = "@" in "".join(path).partition("?")[0]
    if scheme in _HOST_IS_NO_SECRET and _HOST.fullmatch(host) and not doubtful:
        return f"{scheme}://{host}/{_MASK}"
    return f"{scheme}://{_MASK}"


def hide_secrets(text: str, url: str) -> str:
    """Return a library's error message with the URL and all of the URL's secret pieces masked.

    Short pieces can be ordinary words. Therefore, a short piece is masked only if it is in an address or in
    quotes, or if it cannot be a word. Apprise abbreviates pieces to their first and last characters
    (``T...x``). The abbreviations are also masked.
    """
    shown = mask_url(url).lower()
    for piece in sorted(_pieces(url), key=len, reverse=True):
        if piece.lower() in shown:
            continue
        exact = re.escape(piece)
        if len(piece) < _SHORTEST_SECRET:
            before, after = r"(?<![\w.-])", r"(?![\w-])"
            if piece.isalpha() and piece.islower():
                before = r"(?<=[/=:@?&'\"(<\[])"
            exact = f"{before}{exact}{after}"
        ends = rf"(?<!\w){re.escape(piece[0])}(?:\.{{3}}|…){re.escape(piece[-1])}(?!\w)"
        text = re.sub(f"{exact}|{ends}", _MASK, text, flags=re.IGNORECASE)
    return text


def error_line(error: Exception, url: str) -> str:
    """Return the first line of a database error, without the secrets in `url`, or "" if the error is empty.

    SQLAlchemy prints the SQL statement in the following lines.
    """
    return next(iter(hide_secrets(str(error), url).strip().splitlines()), "")


def _pieces(url: str) -> set[str]:
    """Return the strings to mask: the URL, its components, and the encoded forms that libraries print."""
    _, _, rest = url.strip().partition("://")
    place, slash, path = rest.partition("/")
    found = {url.strip(), rest, place.rpartition("@")[0], slash + path if path else "", path}
    found.update(re.split(r"[/?#&]+", rest))
    found.update(re.split(r"[/?#@&=:,]+", rest))
    return {form for piece in found for form in _written(piece) if form}


def _written(piece: str) -> Iterator[str]:
    yield piece
    yield unquote(piece)
    yield quote(unquote(piece), safe="/?&=:@", errors="replace")
