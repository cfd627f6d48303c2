"""What an index's page of a project lists, in either form: JSON (PEP 691) or HTML (PEP 503, many mirrors)."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Any
from urllib.parse import parse_qs, urldefrag

import msgspec

ACCEPT = "application/vnd.pypi.simple.v1+json, text/html;q=0.5"


class ListedFile(msgspec.Struct):
    """A file of the project."""

    filename: str
    url: str
    hashes: dict[str, str] = {}
    yanked: bool | str = False  #: or why


class _Page(msgspec.Struct):
    files: list[ListedFile]


def listed(page: bytes) -> list[ListedFile]:
    """All files; ``ValueError`` where this is no such page."""
    if page.lstrip()[:1] == b"{":
        return msgspec.json.decode(page, type=_Page).files
    links = _Links()
    links.feed(page.decode())
    if not links.found and b"<html" not in page[:1000].lower():
        raise ValueError("neither JSON nor HTML")
    return links.found


class _Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[ListedFile] = []
        self._open: ListedFile | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, Any]]) -> None:
        given = dict(attrs)
        if tag == "a" and given.get("href"):
            url, fragment = urldefrag(given["href"])
            hashes = {name: values[0] for name, values in parse_qs(fragment).items()}
            self._open = ListedFile("", url, hashes, "data-yanked" in given)

    def handle_data(self, data: str) -> None:
        if self._open is not None:
            self._open.filename += data.strip()

    def handle_endtag(self, tag: str) -> None:
        if tag == "a" and self._open is not None:
            self.found.append(self._open)
            self._open = None
