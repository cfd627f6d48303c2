"""Explain briefly why a chat refused a message and how to fix the problem.

Error messages from libraries are long and contain the URL. The patterns match the messages of urllib3 2
(``urllib3/exceptions.py``: NameResolutionError, NewConnectionError, MaxRetryError), of ``http.client``
(RemoteDisconnected), of OpenSSL through ``ssl`` (``[SSL: WRONG_VERSION_NUMBER]``), and of the system's
``strerror``. The messages of ``strerror`` depend on the system's language, so the patterns also include the
error numbers of ECONNREFUSED on Linux and Windows.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from stallwatch_rules.decoding import from_json
from stallwatch_rules.locale import say, templates
from stallwatch_rules.text.lazy import lazy

_CERTIFICATE = lazy(r"certificate verify failed:? ?(?P<why>[^'\"]*?)(?: \(_ssl|['\")]|$)", re.IGNORECASE)
_SSL = lazy(r"\[SSL: (?P<code>\w+)\]")
# The order of the patterns matters, because the message of a proxy error also contains "refused".
_REASONS: tuple[tuple[str, str, str], ...] = (
    (
        r"ProxyError|Tunnel connection failed|Cannot connect to proxy",
        "the proxy refused the connection",
        "proxy",
    ),
    (
        r"NameResolutionError|Name or service not known|getaddrinfo|name resolution|nodename nor servname",
        "the host's name cannot be resolved",
        "dns",
    ),
    (
        r"WRONG_VERSION_NUMBER|RECORD_LAYER_FAILURE|UNKNOWN_PROTOCOL|HTTP_REQUEST|PACKET_LENGTH",
        "the port does not use TLS",
        "no-tls",
    ),
    (r"ConnectTimeout|ReadTimeout|timed out|TimeoutError", "no response in time", "timeout"),
    (r"Connection refused|Errno 111\b|WinError 10061|actively refused", "connection refused", "refused"),
    (r"Network is unreachable|No route to host|Host is down", "no route to the host", "unreachable"),
    (
        r"Connection aborted|Connection reset|Remote end closed|RemoteDisconnected|BadStatusLine",
        "the connection was closed before a response arrived",
        "broken",
    ),
    (r"Failed to parse|InvalidURL|Port out of range", "the host or the port is invalid", "address"),
)
#: Error messages that TLS servers (such as nginx, Apache, or net/http of Go) return for a plain HTTP request.
WANTS_TLS = lazy(
    r"HTTP request was sent to HTTPS port|HTTP request to an HTTPS server|speaking plain HTTP to an SSL",
    re.IGNORECASE,
)
# Matches the reply codes of a mail server (RFC 5321, section 4.2; RFC 4954, section 6).
_SMTP_REPLY = lazy(r"\b([45]\d\d)\b")


class ChannelError(Exception):
    """A failed delivery.

    The message contains no secret from the URL. Do not chain other exceptions to this exception, because a
    traceback would print them, and exceptions of HTTP libraries contain the URL. `chat` is a section of
    ``advice.json``. `code` is the chat's own error code, an HTTP error such as "http-404", or a failure below
    the HTTP layer, such as "dns". `retry_after` is the wait in seconds that the chat requests.
    """

    def __init__(
        self, reason: str, *, chat: str = "", code: str = "", retry_after: float | None = None
    ) -> None:
        super().__init__(reason)
        self.chat = chat
        self.code = code
        self.retry_after = retry_after


def known_failure(output: str) -> ChannelError | None:
    """Return the failure that a library's error text reports, or ``None`` if no pattern matches the text."""
    if (found := _CERTIFICATE.search(output)) is not None:
        why = found["why"].strip(" :")
        shown = f" ({why[:80]})" if why else ""
        return ChannelError(f"the server's certificate was not accepted{shown}", code="tls")
    for pattern, reason, code in _REASONS:
        if re.search(pattern, output):
            return ChannelError(reason, code=code)
    if (found := _SSL.search(output)) is not None:
        return ChannelError(
            f"the TLS connection failed ({found['code'].replace('_', ' ').lower()})", code="tls"
        )
    return ChannelError("the TLS connection failed", code="tls") if "SSLError" in output else None


def smtp_code(output: str) -> str:
    """Return the code for a mail server's refusal, such as ``smtp-535``.

    Return ``smtp`` if the output contains no reply code.
    """
    reply = _SMTP_REPLY.search(output)
    return "smtp" if reply is None else f"smtp-{reply[1]}"


@cache
def _advice() -> dict[str, dict[str, str]]:
    """Return the names of advice texts, keyed by chat and code. The section ``any`` applies to all chats."""
    path = Path(__file__).with_name("advice.json")
    return from_json(path.read_bytes(), dict[str, dict[str, str]])


def remedy(chat: str, code: str, language: str) -> str:
    """Return text that explains how to fix the error. If there is no advice for the code, return ""."""
    known = _advice()
    name = known.get(chat, {}).get(code) or known["any"].get(code, code)
    if f"chat-{name}" not in templates("en", "alerts"):
        name = "down" if code.startswith("http-5") else ""
    return say(f"alerts.chat-{name}", language) if name else ""
