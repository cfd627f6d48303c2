"""If no agent watches the run, serve /metrics from a thread of the rank itself.

The training thread writes to the ring as usual, and never waits for the thread that reads it.
"""

from __future__ import annotations

import atexit
import os
import threading
from dataclasses import replace

from stallwatch_exporter import steady
from stallwatch_exporter.notices import print_notice
from stallwatch_exporter.rings.probing import Probing, make_folder
from stallwatch_exporter.serving.metrics import RunMetrics
from stallwatch_exporter.serving.server import serve
from stallwatch_exporter.settings import ExporterSettings
from stallwatch_exporter.watching.progress import Advance, HookedProgress
from stallwatch_exporter.watching.stall import StallWatch

LOOK_SECONDS = 1.0


class Standalone:
    """Metrics of this process, updated by a daemon thread until the process ends."""

    def __init__(self, run: str, settings: ExporterSettings, local_rank: int = 0) -> None:
        self.folder = make_folder(settings.home)
        self.metrics = RunMetrics(run)
        self._probing = Probing(self.folder)
        self._progress = HookedProgress()
        self._watch = StallWatch(settings, steady.now())
        self._advance = Advance(self._progress, self._watch, self.metrics)
        self._ended = threading.Event()
        port = settings.port + max(local_rank, 0) if settings.port else 0
        self.server = serve(self.metrics.registry, replace(settings, port=port), print_notice)
        self._pid = os.getpid()
        self._thread = threading.Thread(target=self._follow, name="stallwatch", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    def look(self) -> None:
        """Process the new records in the ring and update the metrics."""
        for record in self._probing.read():
            self.metrics.hooked(record)
            self._progress.hooked(record)
            self._advance.seen(record.time)
        self.metrics.thresholds(self._watch.thresholds)
        self.metrics.progressed(self._watch.last_sign)
        self.metrics.dropped(self._probing.lost)

    def close(self) -> None:
        """Stop serving and remove the ring. A forked child has nothing to close."""
        if self._ended.is_set() or os.getpid() != self._pid:
            return
        self._ended.set()
        self._thread.join(timeout=5)
        if self.server is not None:
            self.server.close()
        self._probing.close()

    def _follow(self) -> None:
        while not self._ended.wait(LOOK_SECONDS):
            try:
                self.look()
            except Exception:  # the next call might succeed
                continue
