"""Why no answer came, in a few words of our own: what libraries say of it is long, and holds the URL.

The texts looked for are those of urllib3 2 (``urllib3/exceptions.py``: NameResolutionError,
NewConnectionError, MaxRetryError), of ``http.client`` (RemoteDisconnected), of OpenSSL through ``ssl``
(``[SSL: WRONG_VERSION_NUMBER]``), and of the system's ``strerror``,
whose words are those of its language: Linux' and Windows' numbers of ECONNREFUSED stand beside them.
"""

from __future__ import annotations

import re

from stallwatch_rules.text.lazy import lazy

_CERTIFICATE = lazy(r"certificate verify failed:? ?(?P<why>[^'\"]*?)(?: \(_ssl|['\")]|$)", re.IGNORECASE)
_SSL = lazy(r"\[SSL: (?P<code>\w+)\]")
# In this order: what stands behind a proxy's error says "refused", too.
_REASONS: tuple[tuple[str, str, str], ...] = (
    (r"ProxyError|Tunnel connection failed|Cannot connect to proxy", "the proxy refuses", "proxy"),
    (
        r"NameResolutionError|Name or service not known|getaddrinfo|name resolution|nodename nor servname",
        "the host's name cannot be resolved",
        "dns",
    ),
    (
        r"WRONG_VERSION_NUMBER|RECORD_LAYER_FAILURE|UNKNOWN_PROTOCOL|HTTP_REQUEST|PACKET_LENGTH",
        "the port speaks no TLS",
        "no-tls",
    ),
    (r"ConnectTimeout|ReadTimeout|timed out|TimeoutError", "no answer in time", "timeout"),
    (
        r"Connection refused|Errno 111\b|WinError 10061|actively refused",
        "connection refused",
        "refused",
    ),
    (r"Network is unreachable|No route to host|Host is down", "no way to the host", "unreachable"),
    (
        r"Connection aborted|Connection reset|Remote end closed|RemoteDisconnected|BadStatusLine",
        "the connection broke before an answer came",
        "broken",
    ),
    (r"Failed to parse|InvalidURL|Port out of range", "no such host or port can be", "address"),
)
#: What servers with TLS answer to a request without: nginx, Go's net/http, Apache.
_WANTS_TLS = lazy(
    r"HTTP request was sent to HTTPS port|HTTP request to an HTTPS server|speaking plain HTTP to an SSL",
    re.IGNORECASE,
)


def reason_of(said: str) -> tuple[str, str] | None:
    """The reason and its code (see ``remedies``) behind what a library said; ``None`` where it is another."""
    if (found := _CERTIFICATE.search(said)) is not None:
        why = found["why"].strip(" :")
        return f"the server's certificate is not accepted{f' ({why[:80]})' if why else ''}", "tls"
    for pattern, reason, code in _REASONS:
        if re.search(pattern, said):
            return reason, code
    if (found := _SSL.search(said)) is not None:
        return f"TLS fails ({found['code'].replace('_', ' ').lower()})", "tls"
    return ("TLS fails", "tls") if "SSLError" in said else None


def wants_tls(answer: str) -> bool:
    """Whether a server says that its port takes HTTPS only."""
    return _WANTS_TLS.search(answer) is not None
