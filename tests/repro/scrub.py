"""Remove the machine's own folders and host name from a recording, because they have no meaning elsewhere."""

from __future__ import annotations

import re
import socket
import sys
from collections.abc import Mapping
from pathlib import Path


class LeftOverError(RuntimeError):
    """A recording would still contain a name of this machine."""


class Scrubber:
    """Replaces folders, longest first, and the host name; refuses the user's folders in any text."""

    def __init__(self, folders: Mapping[str, str], host: str, forbidden: tuple[str, ...] = ()) -> None:
        self._folders = sorted(folders.items(), key=lambda pair: -len(pair[0]))
        self._host = re.compile(rf"(?<![\w.-]){re.escape(host)}(?![\w-])") if host else None
        self._forbidden = forbidden

    def text(self, text: str) -> str:
        for real, neutral in self._folders:
            text = text.replace(real, neutral)
        if self._host is not None:
            text = self._host.sub("localhost", text)
        for word in self._forbidden:
            if word in text:
                line = next(line for line in text.splitlines() if word in line)
                raise LeftOverError(f"{word!r} would stay in the recording: {line}")
        return text

    def copy(self, source: Path, target: Path) -> None:
        """Copy one log through the scrubber. Line ends, carriage returns and times stay unchanged."""
        target.parent.mkdir(parents=True, exist_ok=True)
        text = source.read_bytes().decode("utf-8", "surrogateescape")
        target.write_bytes(self.text(text).encode("utf-8", "surrogateescape"))


def scrubber(workdir: Path, repository: Path, overlay: Path | None = None) -> Scrubber:
    """Return the scrubber for this machine, with neutral names for the folders in tracebacks."""
    folders = {str(workdir): "/opt/train", str(workdir.parent): "/opt"}
    if overlay is not None:
        folders[str(overlay)] = f"/opt/{overlay.name}"
    if sys.prefix != sys.base_prefix:
        folders[sys.prefix] = "/opt/venv"
    if sys.base_prefix not in ("/usr", "/usr/local"):
        folders[sys.base_prefix] = "/usr/local"
    home = str(Path.home())
    forbidden = (str(repository), *((home + "/",) if len(home) > 1 else ()))
    return Scrubber(folders, socket.gethostname(), forbidden)
