"""Derive the template of a message: its text without numbers, addresses, IDs, and paths.

``masked`` returns a template for display. ``template_key`` and ``skeleton`` return keys for tables and are
about 60 times as fast. Decision 27 lists the modules that use other templates, with the reasons.
"""

from __future__ import annotations

import re

from stallwatch_rules.text.lazy import lazy

__all__ = ["masked", "repeats", "skeleton", "template_key"]

_VARYING = lazy(
    r"(?P<url>\b[a-z][a-z0-9+]{1,9}://[^\s'\"<>)\]]+)"
    r"|(?P<path>(?<![\w/.])(?:[A-Za-z]:)?(?:[\\/~.]{1,3}[\w@+%=-][\w.@+%=-]*){2,}[\\/]?"
    r"|(?<![\w/.-])[\w.-]+(?:/[\w.@+%=-]+){2,}/?)"
    r"|(?P<id>\b[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b"
    r"|\b(?=[a-f]*\d)(?=\d*[a-f])[0-9a-f]{8,}\b|\b(?=[A-F]*\d)(?=\d*[A-F])[0-9A-F]{8,}\b)"
    r"|(?P<time>\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?)"
    r"|(?P<hex>\b0[xX][0-9a-fA-F]+)"
    r"|(?P<ip>\b\d{1,3}(?:\.\d{1,3}){3}(?::\d+)?\b)"
    r"|(?P<n>\d+(?:[.,:]\d+)*(?:[eE][+-]?\d+)?)"
)
_REPEATED = lazy(r"(?<!\s)\s*\[repeated (\d{1,9})x across cluster\].*$")
#: Bytes that are removed from the key of a line: digits, letters of hexadecimal numbers, and characters that
#: join them.
_DROPPED = b"0123456789abcdefABCDEF.,+-:_ \t"


def template_key(text: bytes) -> bytes:
    """Return a key that is the same for all lines with the same message.

    The key is not suitable for display.
    """
    return text.translate(None, _DROPPED)


def skeleton(text: str) -> str:
    """Return the ``template_key`` of a line as text."""
    # Removing letters from bytes is ten times as fast as removing them from text.
    return template_key(text.encode("utf-8", "surrogatepass")).decode("utf-8", "surrogatepass")


def masked(text: str) -> str:
    """Return a message in which a word in brackets replaces each varying part: ``worker <n> lost <path>``."""
    return _VARYING.sub(_name, _REPEATED.sub("", text))


def repeats(text: str) -> tuple[str, int]:
    """Return two values: a message without the count that Ray adds to combined lines, and the count."""
    found = _REPEATED.search(text)
    return (text[: found.start()], int(found[1])) if found else (text, 1)


def _name(found: re.Match[str]) -> str:
    return f"<{found.lastgroup}>"
