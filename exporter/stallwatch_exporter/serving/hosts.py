"""Which requests are meant for a server of ours: by the names in their ``Host`` and ``Origin`` headers.

A web page that a browser shows may have its own name resolve to this machine ("DNS rebinding"), and then read
what we serve under that name. So a server answers only under names that nobody else can claim: addresses,
``localhost``, the machine's own names, and those that are configured.
"""

from __future__ import annotations

import functools
import ipaddress
import socket
from collections.abc import Iterable, Sequence
from http import HTTPStatus
from typing import NamedTuple
from urllib.parse import urlsplit

from stallwatch_rules.text.lazy import lazy

#: RFC 9110, 7.2: a host and perhaps a port; no user, no path. Browsers send names in ASCII (Punycode).
_AUTHORITY = lazy(r"(?ai)(?:\[(?P<v6>[0-9a-f]*:[0-9a-f:.]+)\]|(?P<name>[\w-]+(?:\.[\w-]+)*)\.?)(?::\d{0,5})?")
#: Names by which a container reaches the machine that runs it (Docker, Podman). ``.internal`` is reserved: no
#: public name server can answer for it.
_FROM_CONTAINERS = ("host.docker.internal", "host.containers.internal")
_REMEDY = "add the name to allowed_hosts under [server] in stallwatch.toml"


class Refusal(NamedTuple):
    """Why a request is not answered."""

    status: HTTPStatus
    reason: str


def host_name(authority: str) -> str | None:
    """Return the lower-case name or address in a ``Host`` header; ``None`` if the header is malformed."""
    found = _AUTHORITY.fullmatch(authority)
    if found is None:
        return None
    name = (found["v6"] or found["name"]).lower()
    return None if found["v6"] and not _is_address(name) else name


def is_allowed_host(authority: str, names: Iterable[str]) -> bool:
    """Whether a server may answer under this ``Host`` header. `names` are further names and ``*.domain``."""
    name = host_name(authority)
    if name is None:
        return False
    if _is_address(name) or name == "localhost" or name.endswith(".localhost"):
        return True
    return _is_among(name, names)


def is_same_origin(origin: str, authority: str) -> bool:
    """Whether a page of this ``Origin`` came from the very host and port that it now addresses."""
    scheme, _, rest = origin.lower().partition("://")  # no others: "null", which a sandboxed frame sends
    return scheme in ("http", "https") and rest == authority.lower()


def refusal_of(
    hosts: Sequence[str], origins: Sequence[str], configured: Iterable[str], *, known_caller: bool = False
) -> Refusal | None:
    """Return why a request with these ``Host`` and ``Origin`` headers is refused; ``None`` if it is not.

    An authenticated caller (`known_caller`) may use any name: no page of a stranger can be one.
    """
    host = hosts[0] if len(hosts) == 1 else ""
    if not known_caller and not is_allowed_host(host, configured) and not is_allowed_host(host, own_names()):
        name = host_name(host)
        what = f"{name} is not a name of this server" if name else "the request has no valid Host header"
        return Refusal(HTTPStatus.MISDIRECTED_REQUEST, f"{what}; use its IP address, or {_REMEDY}")
    if origins and not (len(origins) == 1 and is_same_origin(origins[0], host)):
        what = "the request is from a page of another site; behind a reverse proxy, pass on the Host header"
        return Refusal(HTTPStatus.FORBIDDEN, f"{what} and {_REMEDY}")
    return None


def normalised(names: Iterable[str]) -> frozenset[str]:
    """Return configured names as ``refusal_of`` compares them: lower case, Punycode, no port."""
    return frozenset(filter(None, map(pattern_of, names)))


def pattern_of(name: str) -> str | None:
    """Return one configured name, ``*.domain`` or ``*`` in that form; ``None`` if no request can have it."""
    below = "*." if name.strip().startswith("*.") else ""
    if name.strip() == "*":
        return "*"
    try:
        found = host_name(name.strip().removeprefix(below).encode("idna").decode("ascii"))
    except UnicodeError:  # such as a label that is too long
        return None
    return found and below + found


def name_in(url: str) -> list[str]:
    """Return the host name of an address as a list; an empty one if it has none."""
    try:
        name = urlsplit(url).hostname
    except ValueError:
        return []
    return [name] if name else []


@functools.cache
def own_names() -> frozenset[str]:
    """Return the names of this machine. The first call may ask a name server."""
    return normalised(name for name in (socket.gethostname(), socket.getfqdn(), *_FROM_CONTAINERS) if name)


def _is_among(name: str, names: Iterable[str]) -> bool:
    return any(one in ("*", name) or (one.startswith("*.") and name.endswith(one[1:])) for one in names)


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
