"""Whether what somebody gave to be read is the folder of one run, which knows more than its logs say."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path


def run_folder(paths: Sequence[str | os.PathLike[str]]) -> Path | None:
    """The one path given, if it is the folder that Stallwatch kept of a run."""
    if len(paths) != 1 or not (Path(paths[0]) / "agent.json").is_file():
        return None
    return Path(paths[0])
