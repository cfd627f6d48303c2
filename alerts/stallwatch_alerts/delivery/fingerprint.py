"""A chat's name in the database: the same for the same URL everywhere, and no way back to it."""

from __future__ import annotations

import functools
import hashlib

_SALT = b"stallwatch chat url"
_LENGTH = 16


@functools.lru_cache(maxsize=256)
def fingerprint(url: str) -> str:
    """32 hexadecimal digits. Slow on purpose (50 ms, once per URL): a password in a URL may be weak."""
    return hashlib.scrypt(url.strip().encode(), salt=_SALT, n=2**14, r=8, p=1, dklen=_LENGTH).hex()
