"""What a process has counted so far, for its answer to the agent: it may get on though it seems to hang."""

from __future__ import annotations

import sys

from .draft import INDEX

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import Any

    from .api import Probe

_COUNTED = ("batches", "epochs", "epoch_batches", "switches", "forwards")
_WAITS = ("_try_get_data", "_get_data", "_next_data")  # of an iterator, for its workers
_MOST_FRAMES = 40
_USUAL = 2  # saves of a function after which their length is known
_MOST_WORKERS = 64


def counters(probe: Probe) -> dict[str, Any]:
    """Totals by name; what was never counted is left out."""
    told: dict[str, Any] = {"phase": probe.doing, "steps": probe.steps}
    saves = {name: longest for name, (times, longest) in probe.saves.items() if times >= _USUAL}
    if saves:
        told["saves"] = saves
    row = probe.row
    for name in _COUNTED:
        value = row[INDEX[name]]
        if value == value:
            told[name] = value
    collectives = _collectives()
    if collectives is not None:
        told["collectives"] = collectives
    return told


def _collectives() -> int | None:
    """How many collectives this rank has begun, in all its groups; torch counts them (2.1 to 2.13)."""
    c10d = sys.modules.get("torch.distributed.distributed_c10d")
    groups = getattr(getattr(c10d, "_world", None), "pg_map", None)
    found = None
    for group in list(groups or ()):
        try:
            found = (found or 0) + int(group._get_sequence_number_for_group())
        except Exception:  # a backend that does not count
            continue
    return found


def awaited_workers(frame: FrameType | None) -> list[int]:
    """The processes of the data loader's workers that a thread waits for, which is at `frame`."""
    for _ in range(_MOST_FRAMES):
        if frame is None:
            break
        if frame.f_code.co_name in _WAITS and frame.f_code.co_filename.endswith("dataloader.py"):
            workers = getattr(frame.f_locals.get("self"), "_workers", ())
            return [worker.pid for worker in workers if worker.pid][:_MOST_WORKERS]
        frame = frame.f_back
    return []
