"""What signs the cookies of those who are signed in, where the configuration names nothing."""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from pathlib import Path

_FILE = "dashboard-cookie-secret"
_SHORTEST = 32


def kept_cookie_secret(home: Path) -> str:
    """Made once and kept for the user alone, so that a restart signs nobody out.

    One that others could have read is made anew. Where none can be kept, it lasts until this process ends.
    """
    path = home / _FILE
    with suppress(OSError):
        kept = path.read_text(encoding="ascii").strip()
        if len(kept) >= _SHORTEST and not path.stat().st_mode & 0o077:
            return kept
    made = secrets.token_urlsafe(48)
    with suppress(OSError):
        home.mkdir(parents=True, exist_ok=True, mode=0o700)
        path.unlink(missing_ok=True)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(made)
    return made
