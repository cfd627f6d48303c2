"""The stacks that a run's folder keeps of the stall that it ended in."""

from __future__ import annotations

import os
from collections.abc import Sequence

from stallwatch_exporter.runs.given import run_folder
from stallwatch_exporter.watching.incidents import read_incidents
from stallwatch_rules.stacks.records import StallStacks


def kept_stacks(paths: Sequence[str | os.PathLike[str]]) -> StallStacks | None:
    """Those of the last stall, if the one path is a run's folder and the run did not recover from it."""
    folder = run_folder(paths)
    if folder is None:
        return None
    stalls = [one for one in read_incidents(folder) if one.kind == "stall"]
    last = max(stalls, key=lambda one: one.opened_at, default=None)
    return last.stacks if last is not None and last.resolution != "recovered" else None
