"""transformers' ``trainer_state.json``: its history as the lines that the trainer had logged."""

from __future__ import annotations

import json
from collections.abc import Iterator

_LARGEST = 256 * 1024**2


def trainer_state_lines(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """One JSON line per entry of the history; what is not such a file is given as it is."""
    held = bytearray()
    for chunk in chunks:
        held += chunk
        if len(held) > _LARGEST:
            yield bytes(held)
            yield from chunks
            return
    try:
        state = json.loads(held)
        history = [entry for entry in state["log_history"] if isinstance(entry, dict)]
        total = state.get("max_steps")
    except (ValueError, KeyError, TypeError, RecursionError):
        yield bytes(held)
        return
    for entry in history:
        if isinstance(total, int):
            entry.setdefault("max_steps", total)
        yield json.dumps(entry).encode() + b"\n"
