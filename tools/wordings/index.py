"""Download source archives listed by a package index, without building or running them.

pip cannot download a source archive without running its build, which is the uploader's code.
"""

from __future__ import annotations

import base64
import hashlib
import os
import time
import urllib.error
import urllib.parse
import urllib.request
from html.parser import HTMLParser
from http.client import HTTPException
from typing import Any, NamedTuple

import msgspec
from packaging.utils import InvalidSdistFilename, canonicalize_name, parse_sdist_filename
from packaging.version import Version

from wordings.files import SourceError

INDEX = "https://pypi.org/simple"
ACCEPT = "application/vnd.pypi.simple.v1+json, text/html;q=0.5"
MAX_PAGE = 64 << 20  #: maximum number of bytes of an index page
MAX_SDIST = 256 << 20
SECONDS = 600  #: maximum number of seconds for a complete download
_PAUSE = 60  # maximum number of seconds without a response


class Sdist(NamedTuple):
    """A source archive that the index lists."""

    name: str
    version: Version
    url: str
    sha256: str


def newest_sdist(package: str, version: Version | None) -> Sdist | None:
    """Return the archive of this version or of the newest release, or ``None`` if the index lists none."""
    index = (os.environ.get("PIP_INDEX_URL") or INDEX).rstrip("/")
    name = canonicalize_name(package)
    page = f"{index}/{name}/"
    try:
        files = listed(_fetch(page, MAX_PAGE, index))
    except ValueError as error:
        raise SourceError(f"{_host(index)} does not list the files of {name}: {error}") from error
    found = [sdist for sdist in map(_sdist, files) if sdist is not None]
    if version is not None:
        found = [sdist for sdist in found if sdist.version == version]
    if not found:
        return None
    newest = max(found, key=lambda sdist: (not sdist.version.is_prerelease, sdist.version))
    return newest._replace(url=urllib.parse.urljoin(page, newest.url))


def fetched(sdist: Sdist) -> bytes:
    """Return the content of the archive after checking that its hash matches the hash in the index."""
    index = os.environ.get("PIP_INDEX_URL") or INDEX
    content = _fetch(sdist.url, MAX_SDIST, index)
    if hashlib.sha256(content).hexdigest() != sdist.sha256:
        raise SourceError(f"{sdist.name} is not what the index tells: its SHA-256 differs; try again")
    return content


def _sdist(file: ListedFile) -> Sdist | None:
    if file.yanked:
        return None
    try:
        _, version = parse_sdist_filename(file.filename)
    except InvalidSdistFilename:  # a wheel or an installer
        return None
    digest = file.hashes.get("sha256", "")
    return Sdist(file.filename, version, file.url, digest.lower()) if digest else None


def _fetch(url: str, most: int, index: str) -> bytes:
    """Return a response of at most `most` bytes. Send the index's credentials only to the index's host."""
    plain, login = _split(url)
    parts = urllib.parse.urlsplit(plain)
    if parts.scheme not in ("http", "https"):
        raise SourceError(f"{_host(index)} names a file that is not on the web: {parts.scheme}:")
    if not login and parts.netloc == urllib.parse.urlsplit(_split(index)[0]).netloc:
        login = _split(index)[1]
    request = urllib.request.Request(plain, headers={"Accept": f"{ACCEPT}, */*;q=0.1"})
    if login:  # the target of a redirect must not receive the credentials
        request.add_unredirected_header("Authorization", "Basic " + base64.b64encode(login.encode()).decode())
    deadline = time.monotonic() + SECONDS
    content = bytearray()
    try:
        with urllib.request.urlopen(request, timeout=_PAUSE) as answer:
            while piece := answer.read(1 << 20):
                content += piece
                if len(content) > most:
                    raise SourceError(f"{_host(plain)} sends more than {most >> 20} MiB for {parts.path}")
                if time.monotonic() > deadline:
                    raise SourceError(f"{_host(plain)} took longer than {SECONDS} s for {parts.path}")
    except (urllib.error.URLError, HTTPException, OSError, ValueError) as error:
        raise SourceError(f"{_host(plain)} cannot be asked for {parts.path}: {error}") from error
    return bytes(content)


def _split(url: str) -> tuple[str, str]:
    """Split a URL into two strings: the URL without credentials, and the username with the password."""
    parts = urllib.parse.urlsplit(url)
    login, _, host = parts.netloc.rpartition("@")
    return urllib.parse.urlunsplit(parts._replace(netloc=host)), urllib.parse.unquote(login)


def _host(url: str) -> str:
    return urllib.parse.urlsplit(url).hostname or "the index"


# ------------ the page of a project in an index: JSON (PEP 691), or HTML (PEP 503, many mirrors)


class ListedFile(msgspec.Struct):
    """A file of the project that the index page lists."""

    filename: str
    url: str
    hashes: dict[str, str] = {}
    yanked: bool | str = False  #: True, or the reason for the yank


class _Page(msgspec.Struct):
    files: list[ListedFile]


def listed(page: bytes) -> list[ListedFile]:
    """Return all files that an index page lists. Raise ``ValueError`` for any other page."""
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
            url, fragment = urllib.parse.urldefrag(given["href"])
            hashes = {name: values[0] for name, values in urllib.parse.parse_qs(fragment).items()}
            self._open = ListedFile("", url, hashes, "data-yanked" in given)

    def handle_data(self, data: str) -> None:
        if self._open is not None:
            self._open.filename += data.strip()

    def handle_endtag(self, tag: str) -> None:
        if tag == "a" and self._open is not None:
            self.found.append(self._open)
            self._open = None
