"""Batches that a torch ``DataLoader`` hands out, and the epochs that it begins.

A ``for`` loop looks ``__next__`` up in the iterator's class for each batch, just before it waits for it
(torch 2.1 to 2.13, ``utils/data/dataloader.py``). Workers count nothing: what they load is not handed out.
"""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

from ..api import Probe
from ..draft import INDEX
from ..noticing import notice_method
from .phases import TRAIN, doing_of

_BATCHES, _EPOCHS, _OF_EPOCH = INDEX["batches"], INDEX["epochs"], INDEX["epoch_batches"]
_PHASE = INDEX["phase"]


def install(module: Any, probe: Probe) -> None:
    """Watch the iterators of ``torch.utils.data.dataloader``."""
    doing = doing_of(probe)

    def begins(_: Any, frame: FrameType) -> None:
        if _in_worker():
            return
        row = probe.row
        epochs, batches = row[_EPOCHS], row[_BATCHES]
        row[_EPOCHS] = epochs + 1.0 if epochs == epochs else 1.0
        row[_BATCHES] = batches if batches == batches else 0.0
        row[_OF_EPOCH] = 0.0
        doing.batch(frame)

    def asked(iterator: Any, frame: FrameType) -> None:
        row = probe.row
        if row[_EPOCHS] != row[_EPOCHS]:
            return  # no epoch began in this process: a worker
        handed_out = row[_OF_EPOCH] = iterator._num_yielded
        if handed_out:
            row[_BATCHES] += 1.0
        if row[_PHASE] != TRAIN or doing.changed_mode():
            doing.batch(frame)

    notice_method(module.DataLoader, "__iter__", begins, probe.failed)
    notice_method(module._BaseDataLoaderIter, "__next__", asked, probe.failed)


def _in_worker() -> bool:
    worker = sys.modules.get("torch.utils.data._utils.worker")
    return getattr(worker, "_worker_info", None) is not None
