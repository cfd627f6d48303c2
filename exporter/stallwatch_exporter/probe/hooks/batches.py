"""Count the batches that a torch ``DataLoader`` yields, and the epochs that it begins.

A ``for`` loop looks up ``__next__`` in the iterator's class for each batch, immediately before it waits for
the batch (torch 2.1 to 2.13, ``utils/data/dataloader.py``). Nothing is counted in data workers, because they
yield no batches.
"""

from __future__ import annotations

import sys
from types import FrameType, MethodType
from typing import Any

from ..api import Probe
from ..draft import INDEX
from ..noticing import notice_method
from .phases import TRAIN, phase_tracker_of

_BATCHES, _EPOCHS, _OF_EPOCH = INDEX["batches"], INDEX["epochs"], INDEX["epoch_batches"]
_PHASE = INDEX["phase"]


def install(module: Any, probe: Probe) -> None:
    """Watch the iterators of ``torch.utils.data.dataloader``."""
    iterators = module._BaseDataLoaderIter
    counted = iterators.__next__ = CountedBatches(vars(iterators)["__next__"], probe)
    notice_method(module.DataLoader, "__iter__", counted.epoch, probe.failed)


class CountedBatches:
    """Descriptor that replaces ``__next__`` and only counts its lookups, so that calls remain fast."""

    def __init__(self, function: Any, probe: Probe) -> None:
        self.function = function
        self._probe = probe
        self._doing = phase_tracker_of(probe)

    def __get__(self, iterator: Any, owner: Any = None) -> Any:
        if iterator is None:
            return self.function
        try:
            row = self._probe.row
            handed_out = row[_OF_EPOCH] = iterator._num_yielded
            if handed_out:
                row[_BATCHES] += 1.0  # the count stays NaN before the first epoch and in workers
            if row[_PHASE] != TRAIN:
                self._doing.batch(sys._getframe(1))
        except Exception:
            self._probe.failed()
        return MethodType(self.function, iterator)

    def epoch(self, _: Any, frame: FrameType) -> None:
        """Count an epoch when the ``__iter__`` of a loader is looked up."""
        if _in_worker():
            return
        row = self._probe.row
        epochs, batches = row[_EPOCHS], row[_BATCHES]
        row[_EPOCHS] = epochs + 1.0 if epochs == epochs else 1.0
        row[_BATCHES] = batches if batches == batches else 0.0
        row[_OF_EPOCH] = 0.0
        self._doing.batch(frame)


def _in_worker() -> bool:
    worker = sys.modules.get("torch.utils.data._utils.worker")
    return getattr(worker, "_worker_info", None) is not None
