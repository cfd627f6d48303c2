"""Decide from the ``Host`` and ``Origin`` headers whether a request is intended for this server.

A web page can make its own domain name resolve to this machine ("DNS rebinding") and then read the server's
pages under that name. Therefore, a server responds only under names that no other party can claim: addresses,
``localhost``, the machine's own names, and configured names.
"""

from __future__ import annotations

import ipaddress
import socket
import threading
import time
from collections.abc import Iterable, Sequence
from http import HTTPStatus
from typing import NamedTuple
from urllib.parse import urlsplit

from stallwatch_rules.text.lazy import lazy

#: RFC 9110, 7.2: the header contains a host and optionally a port, but no user and no path. Browsers send
#: names in ASCII (Punycode).
_AUTHORITY = lazy(r"(?ai)(?:\[(?P<v6>[0-9a-f]*:[0-9a-f:.]+)\]|(?P<name>[\w-]+(?:\.[\w-]+)*)\.?)(?::\d{0,5})?")
#: Names by which a container reaches the machine that runs it (Docker or Podman). ``.internal`` is reserved,
#: so no public name server can answer for these names.
_FROM_CONTAINERS = ("host.docker.internal", "host.containers.internal")
_MOST_LETTERS = 253 + len(".:65535")  #: maximum length of a DNS name (RFC 1035, 2.3.4) with a port
_PORTS = {"http": ":80", "https": ":443"}
_REQUERY_SECONDS = 60.0  #: seconds until a name server is queried again because it might have been down
_REMEDY = "add the name to allowed_hosts under [server] in stallwatch.toml"


class Refusal(NamedTuple):
    """Status and reason for the rejection of a request."""

    status: HTTPStatus
    reason: str


def host_name(authority: str) -> str | None:
    """Return the lowercase name or address in a ``Host`` header, or ``None`` if the header is malformed."""
    found = _AUTHORITY.fullmatch(authority)
    if found is None or len(authority) > _MOST_LETTERS:
        return None
    name = (found["v6"] or found["name"]).lower()
    return None if found["v6"] and not _is_address(name) else name


def is_allowed_host(authority: str, names: Iterable[str]) -> bool:
    """Return whether a server responds to this ``Host`` header. `names` can include ``*.domain``."""
    name = host_name(authority)
    if name is None:
        return False
    if _is_address(name) or name == "localhost" or name.endswith(".localhost"):
        return True
    return any(each in ("*", name) or (each.startswith("*.") and name.endswith(each[1:])) for each in names)


def is_same_origin(origin: str, authority: str) -> bool:
    """Return whether a page with this ``Origin`` was loaded from the host and port that it now requests."""
    scheme, _, rest = origin.lower().partition("://")
    port = _PORTS.get(scheme)  # None for other schemes; for example, a sandboxed frame sends "null"
    # Browsers omit the scheme's default port, but a proxy can include it.
    return port is not None and rest.removesuffix(port) == authority.lower().removesuffix(port)


def refusal_of(
    hosts: Sequence[str],
    origins: Sequence[str],
    configured: Iterable[str],
    *,
    url: str = "",
    known_caller: bool = False,
) -> Refusal | None:
    """Return the reason to reject a request with these ``Host`` and ``Origin`` headers, or ``None``.

    A page from `url`, the address at which users access the server, is accepted even if a proxy changes the
    ``Host``. An authenticated caller (`known_caller`) can use any name because a page of another site
    cannot be authenticated.
    """
    host = hosts[0] if len(hosts) == 1 else ""
    if not known_caller and not is_allowed_host(host, configured) and not is_allowed_host(host, own_names()):
        name = host_name(host)
        what = f"{name} is not a name of this server" if name else "the request has no valid Host header"
        return Refusal(HTTPStatus.MISDIRECTED_REQUEST, f"{what}; use the server's IP address, or {_REMEDY}")
    if origins and not (len(origins) == 1 and (is_same_origin(origins[0], host) or _is_of(origins[0], url))):
        what = "the request is from a page of another site; behind a reverse proxy, forward the Host header"
        return Refusal(HTTPStatus.FORBIDDEN, f"{what} (or set url under [dashboard]) and {_REMEDY}")
    return None


def normalised(names: Iterable[str]) -> frozenset[str]:
    """Return the valid names, each in the form that `pattern_of` returns."""
    return frozenset(filter(None, map(pattern_of, names)))


def pattern_of(name: str) -> str | None:
    """Return a configured name or pattern as lowercase Punycode that has no port, or ``None`` if invalid.

    A pattern is ``*.domain`` or ``*``.
    """
    below = "*." if name.strip().startswith("*.") else ""
    if name.strip() == "*":
        return "*"
    try:
        found = host_name(name.strip().removeprefix(below).encode("idna").decode("ascii"))
    except UnicodeError:  # for example, a label that is too long
        return None
    return found and below + found


def name_in(url: str) -> list[str]:
    """Return the hostname of a URL as a list of one name, or an empty list if the URL has no hostname."""
    try:
        name = urlsplit(url).hostname
    except ValueError:
        return []
    return [name] if name else []


def own_names() -> frozenset[str]:
    """Return the names of this machine. A name server is queried at most once a minute."""
    name = socket.gethostname()
    # The machine can also have a name in ``.local``, which is reserved for mDNS.
    local = [] if not name or "." in name else [f"{name}.local"]
    return normalised(filter(None, (name, *local, _full_name(), *_FROM_CONTAINERS)))


class _FullName:
    """Full name of this machine, which a name server provides.

    Only one caller at a time waits for the name server. All other callers get the last known name.
    """

    def __init__(self) -> None:
        self._query_lock = threading.Lock()
        self._name = ""
        self._until = float("-inf")

    def __call__(self) -> str:
        if time.monotonic() >= self._until and self._query_lock.acquire(blocking=False):
            try:
                found = socket.getfqdn()
                # If there is no response, the result is the short name, so the last known name is kept.
                self._name = found if "." in found else self._name
                self._until = time.monotonic() + _REQUERY_SECONDS
            finally:
                self._query_lock.release()
        return self._name


_full_name = _FullName()


def _is_of(origin: str, url: str) -> bool:
    """Return whether a page with this ``Origin`` belongs to the site at this URL."""
    scheme, _, rest = url.lower().partition("://")
    authority = rest.partition("/")[0]
    return bool(authority) and origin.lower().startswith(f"{scheme}://") and is_same_origin(origin, authority)


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
