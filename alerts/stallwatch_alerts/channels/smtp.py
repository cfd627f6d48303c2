"""What a mail server's refusal means, by its reply code (RFC 5321, section 4.2; RFC 4954, section 6)."""

from __future__ import annotations

from stallwatch_rules.text.lazy import lazy

_REPLY = lazy(r"\b([45]\d\d)\b")


def code_of(said: str) -> str:
    """``smtp-535`` and the like; what failed below SMTP; or ``smtp``."""
    lowered = said.lower()
    for words, code in (
        (("refused",), "refused"),
        (("name or service not known", "getaddrinfo", "name resolution"), "dns"),
        (("timed out",), "timeout"),
        (("certificate",), "tls"),
    ):
        if any(word in lowered for word in words) and _REPLY.search(said) is None:
            return code
    found = _REPLY.search(said)
    return f"smtp-{found[1]}" if found is not None else "smtp"
