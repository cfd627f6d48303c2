"""transformers' ``trainer_state.json``: its history as the lines that the trainer had logged."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from stallwatch_exporter.files.wholefiles import lines_of_whole


def trainer_state_lines(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """One JSON line per entry of the history; what is not such a file is given as it is."""
    return lines_of_whole(chunks, _history)


def _history(state: Any) -> Iterator[bytes]:
    total = state.get("max_steps")
    for entry in state["log_history"]:
        if isinstance(entry, dict):
            if isinstance(total, int):
                entry.setdefault("max_steps", total)
            yield json.dumps(entry).encode() + b"\n"
