"""The probe of one process: what hooks and users tell of a step goes into the ring as one record.

Nothing in here raises, waits, or asks a device for a number that is not ready (``devices``). Until there is
something to tell, nothing is made: most Python processes of a command are no ranks.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from .devices import Reading
from .events import EventFile
from .layout import DROPPED_EVENTS, DROPPED_RECORDS, FAULTS, FIELDS, PASSING, PHASES
from .ring import RingWriter

FOLDER_VARIABLE = "STALLWATCH_PROBE_DIR"  #: where the rings are made; set by ``stallwatch run``
SWITCH_VARIABLE = "STALLWATCH_PROBE"  #: "0" switches the probe off
SAMPLE_SECONDS = 1.0  #: costly readings are taken at most this often

_NAN = float("nan")
_INDEX = {name: place for place, name in enumerate(FIELDS)}
_STEP, _SECONDS, _PHASE = _INDEX["step"], _INDEX["step_seconds"], _INDEX["phase"]
_LOSS, _GRAD_NORM, _TOLD_NAN = _INDEX["loss"], _INDEX["grad_norm"], _INDEX["told_nan"]
_FLEETING = len(PASSING)
_NOTHING = (_NAN,) * _FLEETING
_TRAIN = float(PHASES.index("train"))


class Probe:
    """Tell it of steps, values and phases; it never raises and never waits."""

    def __init__(
        self,
        folder: Path | None,
        environ: Mapping[str, str] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        #: Called about once a second, within a step; each gives some fields their values.
        self.samplers: list[Callable[[], Mapping[str, float]]] = []
        self.told_by_user = False  #: the training itself calls ``step``: hooks do not count steps then
        self.steps: float = 0.0  #: number of the last step
        self._folder = folder
        self._environ = os.environ if environ is None else environ
        self._clock = clock
        self._ring: RingWriter | None = None
        self._events: EventFile | None = None
        self._off = folder is None
        self.is_rank = "RANK" in self._environ or "LOCAL_RANK" in self._environ  #: a launcher says so
        self._row = [_NAN] * len(FIELDS)
        self._waiting: dict[str, Reading] = {}
        self._stepped_at: float | None = None
        self._written_at = self._sampled_at = 0.0
        self._missed = self._faults = 0
        self._busy = threading.Lock()  # only ever tried: whoever comes second is counted, and goes on
        self._try_busy = self._busy.acquire

    # ---- numbers

    def step(self, number: float | None = None, **values: Any) -> None:
        """A training step is done; `values` are fields of ``layout``, such as ``loss``."""
        if self._off or not (self._try_busy(False) or self._too_late()):
            return
        try:
            row, places = self._row, _INDEX
            try:
                for name, value in values.items():
                    if type(value) is float:
                        row[places[name]] = value
                    else:
                        self._take(name, value)
                if row[_LOSS] != row[_LOSS] or row[_GRAD_NORM] != row[_GRAD_NORM]:
                    self._mark_nan(values)
            except Exception:
                self._take_each(values)
            now = self._clock()
            self.steps = row[_STEP] = self.steps + 1.0 if number is None else number
            if self._stepped_at is not None:
                row[_SECONDS] = now - self._stepped_at
            self._stepped_at = now
            row[_PHASE] = _TRAIN
            if self._waiting or self._ring is None or not 0.0 <= now - self._sampled_at < SAMPLE_SECONDS:
                self._prepare(now)
            self._ring.write(now, row)  # type: ignore[union-attr]  # prepared
            self._written_at = now
            row[:_FLEETING] = _NOTHING
        except Exception:
            self._fault()
        finally:
            self._busy.release()

    def value(self, name: str, value: Any) -> None:
        """A field of the next record. A tensor on a device is read when it is ready, in a later one."""
        if self._off or not self._enter():
            return
        try:
            self._take(name, value)
        except Exception:
            self._fault()
        finally:
            self._busy.release()

    def add(self, name: str, by: float = 1.0) -> None:
        """Count something. A record is written for it alone only when the last one is a second old."""
        if self._off or not self._enter():
            return
        try:
            place = _INDEX[name]
            before = self._row[place]
            self._row[place] = (before if before == before else 0.0) + by
            self._write_if_due()
        except Exception:
            self._fault()
        finally:
            self._busy.release()

    def phase(self, name: str) -> None:
        """What the rank does now: one of ``layout.PHASES``. The next step ends any other phase."""
        if self._off or not self._enter():
            return
        try:
            self._row[_PHASE] = float(PHASES.index(name))
            self._stepped_at = None  # the time until the next step is not that step's alone
            self._write(self._clock())
        except Exception:
            self._fault()
        finally:
            self._busy.release()

    def announce(self) -> None:
        """Write a record now, so that the agent knows this rank before its first step."""
        if self._off or not self._enter():
            return
        try:
            self._write(self._clock())
        except Exception:
            self._fault()
        finally:
            self._busy.release()

    # ---- text

    def event(self, kind: str, key: str | None = None, **about: Any) -> None:
        """Text for the side file; what has the same `key` is told once, then counted."""
        if self._off or not (self.is_rank or self._ring):
            return  # a launcher's warnings are no rank's
        try:
            ring = self._open()
            if self._events is None:
                self._events = EventFile(ring.path.with_suffix(".jsonl"))
            dropped = self._events.dropped
            self._events.write(kind, key, **about)
            if self._events.dropped != dropped:
                ring.count(DROPPED_EVENTS, self._events.dropped)
        except Exception:
            self._fault()

    def failed(self) -> None:
        """A hook failed: count it."""
        self._fault()

    # ---- inside

    def forked(self) -> None:
        """In a child after a fork: the ring is the parent's. The child gets one of its own when it steps."""
        self._busy = threading.Lock()
        self._try_busy = self._busy.acquire
        self._ring = self._events = None
        self._waiting.clear()
        self._row = [_NAN] * len(FIELDS)
        self._stepped_at, self.steps = None, 0.0

    def _enter(self) -> bool:
        return self._try_busy(False) or self._too_late()

    def _too_late(self) -> bool:
        self._missed += 1
        if self._ring is not None:
            self._ring.count(DROPPED_RECORDS, self._missed)
        return False

    def _take(self, name: str, value: Any) -> None:
        if value is None:
            return
        place = _INDEX[name]  # an unknown name is counted as a fault
        if isinstance(value, (int, float)):
            self._put(place, float(value))
            return
        reading = self._waiting.get(name)
        if reading is None:
            reading = self._waiting[name] = Reading(self._clock)
        number = reading.offer(value)
        if number is not None:
            self._put(place, number)

    def _mark_nan(self, values: Mapping[str, Any]) -> None:
        """A loss or a gradient norm is NaN, or was not told at all."""
        for name in ("loss", "grad_norm"):
            value = values.get(name)
            if type(value) is float and value != value:
                self._put(_INDEX[name], value)

    def _take_each(self, values: Mapping[str, Any]) -> None:
        """One of them cannot be taken: it is counted, the others are not lost with it."""
        for name, value in values.items():
            try:
                self._take(name, value)
            except Exception:
                self._fault()

    def _put(self, place: int, number: float) -> None:
        self._row[place] = number
        if number != number:  # which alone would say that it was not told
            marked = self._row[_TOLD_NAN]
            self._row[_TOLD_NAN] = float(int(marked if marked == marked else 0.0) | 1 << place)

    def _write_if_due(self) -> None:
        now = self._clock()
        if now - self._written_at >= SAMPLE_SECONDS or now < self._written_at:
            self._write(now)

    def _write(self, now: float) -> None:
        ring = self._prepare(now)
        ring.write(now, self._row)
        self._written_at = now
        self._row[:_FLEETING] = _NOTHING

    def _prepare(self, now: float) -> RingWriter:
        """What is not done for each record: the ring itself, numbers that have arrived, costly readings."""
        ring = self._ring or self._open()
        if self._waiting:
            self._collect()
        if not 0.0 <= now - self._sampled_at < SAMPLE_SECONDS:
            self._sampled_at = now
            self._sample()
        return ring

    def _collect(self) -> None:
        for name, reading in self._waiting.items():
            number = reading.ready()
            if number is not None:
                self._put(_INDEX[name], number)

    def _sample(self) -> None:
        for sampler in self.samplers:
            try:
                for name, value in sampler().items():
                    self._row[_INDEX[name]] = float(value)
            except Exception:
                self._fault()

    def _open(self) -> RingWriter:
        if self._ring is None:
            assert self._folder is not None
            rank, local_rank = _ranks(self._environ)
            name = f"{rank}-{os.getpid()}-{time.time_ns()}.ring"
            try:
                self._ring = RingWriter(self._folder / name, rank, local_rank)
            except Exception:
                self._off = True  # no folder, no room: it will not be tried at every step
                raise
        return self._ring

    def _fault(self) -> None:
        self._faults += 1
        if self._ring is not None:
            self._ring.count(FAULTS, self._faults)


def _ranks(environ: Mapping[str, str]) -> tuple[int, int]:
    """Global and local rank: what torch.distributed says, else the launcher's variables; -1 is unknown."""
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


_current: Probe | None = None


def current() -> Probe:
    """This process's probe; one without a folder does nothing."""
    global _current
    if _current is None:
        folder = os.environ.get(FOLDER_VARIABLE)
        on = folder and os.environ.get(SWITCH_VARIABLE) != "0"
        _current = Probe(Path(folder) if on and folder else None)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=_forked)
    return _current


def use(probe: Probe) -> None:
    """Make `probe` this process's own: where there is no agent, a run watches itself."""
    global _current
    current()
    _current = probe


def _forked() -> None:
    if _current is not None:
        _current.forked()
