"""Which rank this process is: as torch.distributed says, else as its launcher put it into the environment."""

from __future__ import annotations

import sys
from collections.abc import Mapping


def ranks(environ: Mapping[str, str]) -> tuple[int, int]:
    """Global and local rank; -1 is unknown."""
    local = _number(environ.get("LOCAL_RANK"))
    distributed = sys.modules.get("torch.distributed")
    try:
        if distributed is not None and distributed.is_available() and distributed.is_initialized():
            return int(distributed.get_rank()), local
    except Exception:
        pass
    rank = _number(environ.get("RANK"))
    return (rank if rank >= 0 else max(local, 0)), local


def _number(text: str | None) -> int:
    return int(text) if text is not None and text.isdigit() and len(text) < 9 else -1
