"""Record the values that hooks and users report for each step of a process, and write them to the ring.

The probe stores each step and count in the ring's draft immediately. It writes at most one record per
``RECORD_SECONDS`` for steps (after the first ``FIRST_RECORDS``), and one record when the phase changes. It
never raises errors, never waits, and never reads a number before a device has computed it (see ``draft``).
The first report creates the ring because most Python processes are not ranks and need no ring.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar, cast

from .clock import steady_offset
from .draft import FIRST, INDEX, NAN, TIME, Draft
from .events import EventFile
from .layout import DROPPED_EVENTS, DROPPED_RECORDS, FAULTS, FIELDS, PASSING, PHASES
from .ring import RingWriter

FOLDER_VARIABLE = "STALLWATCH_PROBE_DIR"  #: folder of the rings, which ``stallwatch run`` sets
SWITCH_VARIABLE = "STALLWATCH_PROBE"  #: the value "0" disables the probe
SAMPLE_SECONDS = 1.0  #: minimum number of seconds between expensive readings, such as two calls to a sampler
RECORD_SECONDS = 0.05  #: Minimum number of seconds between records. Faster steps share a record.
FIRST_RECORDS = 100  #: number of records that are written without a minimum interval

_STEP, _SECONDS, _LOSS = INDEX["step"], INDEX["step_seconds"], INDEX["loss"]
_PHASE, _BEATS = INDEX["phase"], INDEX["beats"]
_FLEETING = slice(INDEX[PASSING[0]], INDEX[PASSING[-1]] + 1)
_NOTHING = Draft(len(PASSING)).cells[FIRST:]
_INIT, _TRAIN = float(PHASES.index("init")), float(PHASES.index("train"))


_Method = TypeVar("_Method", bound="Callable[..., None]")


def _in_turn(method: _Method) -> _Method:
    """Wrap a `Probe` method to count errors and to skip calls while another thread runs such a method."""

    @functools.wraps(method)
    def guarded(probe: Probe, *values: Any, **named: Any) -> None:
        if probe._off:
            return
        try:
            probe._turn.pop()
        except IndexError:
            probe._too_late()
            return
        try:
            method(probe, *values, **named)
        except Exception:
            probe.failed()
        finally:
            probe._turn.append(True)

    return cast(_Method, guarded)


class Probe:
    """Recorder of a process's steps, values, and phases. Its methods never raise errors and never wait."""

    def __init__(
        self,
        folder: Path | None,
        environ: Mapping[str, str] | None = None,
        clock: Callable[[], float] | None = None,
    ) -> None:
        # Fields that a hook reads in each step come first, so that they are adjacent.
        #: Whether the training program calls ``step`` itself. If so, hooks count no steps.
        self.reported_by_user = False
        #: Whether losses are averages over many steps. If so, hooks sample single losses.
        self.averages_losses = False
        self.steps: float = 0.0  #: number of the last step
        self.due_at = 0.0  #: earliest time at which a step gets its own record
        self._environ = os.environ if environ is None else environ
        self.monotonic, self.offset = time.monotonic, steady_offset(self._environ)
        if clock is not None:
            self.monotonic, self.offset = clock, 0.0
        self._draft = Draft(clock=self.clock)
        self.row = self._draft.cells  #: cells of the draft (see ``INDEX``), which hooks change to count
        #: Samplers, which the probe calls about once a second, within a step. Each sampler returns the values
        #: of some fields.
        self.samplers: list[Callable[[], Mapping[str, float]]] = []
        #: Number of saves and their longest duration in seconds, by caller.
        self.saves: dict[str, tuple[int, float]] = {}
        self._folder = folder
        self.stop_counting: Callable[[], None] | None = None  #: ends `ForwardPasses` at the next step
        self._ring: RingWriter | None = None
        self._events: EventFile | None = None
        self._off = folder is None
        #: True if a launcher set the rank of this process.
        self.is_rank = "RANK" in self._environ or "LOCAL_RANK" in self._environ
        # Start time of the next record's first step, and number of the step before it.
        self._begun_at, self._begun_with = NAN, 0.0
        self._written_at = self._sampled_at = 0.0
        self._missed = self._faults = 0
        # The list contains one item, which represents the turn. A caller takes the item without waiting. If
        # the item is already taken, the call is only counted. Taking the item is atomic, and faster than
        # acquiring a lock.
        self._turn = [True]

    def clock(self) -> float:
        """Return the steady Unix time, in seconds."""
        return self.monotonic() + self.offset

    def step(
        self,
        number: float | None = None,
        loss: Any = None,
        grad_norm: Any = None,
        learning_rate: Any = None,
        loss_scale: Any = None,
        skipped_steps: Any = None,
        **others: Any,
    ) -> None:
        """Record a training step.

        Each argument sets a field of ``layout`` to a number or a one-element tensor.

        If `number` is ``None``, the probe counts the steps itself. To save time, the usual fields are
        separate parameters, because a loop over a dict takes 50% longer. They are also not keyword-only,
        because Python looks up the defaults of keyword-only parameters by name.
        """
        if self._off:
            return
        turn = self._turn
        try:
            turn.pop()
        except IndexError:
            self._too_late()
            return
        try:
            ring = self._ring or self._open()
            if self.stop_counting is not None:
                self.stop_counting()
            row, now = self.row, self.monotonic() + self.offset
            steps = self.steps + 1.0
            self.steps = row[_STEP] = steps if number is None else number
            self._begun_with += self.steps - steps
            # The duration is NaN (unknown) if there is no earlier step.
            row[_SECONDS] = (now - self._begun_at) / (self.steps - self._begun_with)
            row[_PHASE] = _TRAIN
            usual = (loss, grad_norm, learning_rate, loss_scale, skipped_steps)
            for place, value in enumerate(usual, _LOSS):
                if type(value) is float and value - value == 0.0:
                    row[place] = value
                elif value is not None:
                    self._take_one(FIELDS[place - FIRST], value)
            for name, value in others.items():
                self._take_one(name, value)
            row[TIME] = now
            if now < self.due_at:
                return
            self._prepare(now)
            ring.write(now)
            self._written_at = self._begun_at = now
            self._begun_with = self.steps
            self.due_at = now + RECORD_SECONDS if ring.written > FIRST_RECORDS else 0.0
            row[_FLEETING] = _NOTHING
        except Exception:
            self.failed()
        finally:
            turn.append(True)

    def value(self, name: str, value: Any) -> None:
        """Set a field of the next record, or of a later record if `value` is a tensor on a device."""
        # Hooks call this method in each step. To save time, it repeats the code of `_in_turn`, as `step`
        # does.
        if self._off:
            return
        turn = self._turn
        try:
            turn.pop()
        except IndexError:
            self._too_late()
            return
        try:
            self._finish()
            self._draft.take(name, value)
        except Exception:
            self.failed()
        finally:
            turn.append(True)

    @_in_turn
    def add(self, name: str, by: float = 1.0) -> None:
        """Increase a count. If the last record is at least a second old, write a record."""
        place = INDEX[name]
        before = self.row[place]
        self.row[place] = (before if before == before else 0.0) + by
        self._write_if_due()

    @_in_turn
    def phase(self, name: str) -> None:
        """Set the rank's phase to one of ``layout.PHASES``. The next step sets the phase to ``train``.

        A repeated call with the same phase shows that the rank is alive, for example, after each batch of an
        evaluation.
        """
        self._finish()
        row, phase = self.row, float(PHASES.index(name))
        lasts = row[_PHASE] == phase
        row[_PHASE] = phase
        row[_BEATS] = (row[_BEATS] if row[_BEATS] == row[_BEATS] else 0.0) + 1.0
        self._begun_at = NAN  # the time until the next step includes other work
        self.due_at = 0.0
        if lasts:
            self._write_if_due()
        else:
            self._write(self.clock())

    @property
    def doing(self) -> str:
        """Current phase, which is ``init`` until another phase is set."""
        phase = self.row[_PHASE]
        return PHASES[int(phase)] if phase == phase else "init"

    @property
    def reports(self) -> bool:
        """Return whether this process has reported anything, excluding its parent's reports before a fork."""
        return self._ring is not None

    @_in_turn
    def announce(self) -> None:
        """Write a record now, so that the agent detects this rank before its first step."""
        self._finish()
        if self.row[_PHASE] != self.row[_PHASE]:
            self.row[_PHASE] = _INIT
        self._write(self.clock())

    def event(self, kind: str, key: str | None = None, **about: Any) -> None:
        """Write a text event to the file next to the ring.

        Most events with a repeated `key` are only counted.
        """
        if self._off or not (self.is_rank or self._ring):
            return  # warnings in a launcher process do not belong to a rank
        try:
            if self._ring is None:
                self._begin()
            ring, events = self._ring, self._events
            if ring is None or events is None:
                return  # another thread is creating the file, or the file cannot be created
            dropped = events.dropped
            events.write(kind, key, **about)
            if events.dropped != dropped:
                ring.count(DROPPED_EVENTS, events.dropped)
        except Exception:
            self.failed()

    def left_out(self) -> None:
        """Count an event that was not written because there were too many events of its kind."""
        ring, events = self._ring, self._events
        if ring is not None and events is not None:
            events.dropped += 1
            ring.count(DROPPED_EVENTS, events.dropped)

    def failed(self) -> None:
        """Count an internal error of the probe or of a hook."""
        self._faults += 1
        if self._ring is not None:
            self._ring.count(FAULTS, self._faults)

    def forked(self) -> None:
        """Reset the probe in a forked child process, which gets its own ring with its first report."""
        self._turn = [True]
        self._ring = self._events = None
        self._draft = Draft(clock=self.clock)
        self.row = self._draft.cells
        self._begun_at, self._begun_with, self.due_at, self.steps = NAN, 0.0, 0.0, 0.0

    @_in_turn
    def _begin(self) -> None:
        self._open()

    def _too_late(self) -> None:
        self._missed += 1
        if self._ring is not None:
            self._ring.count(DROPPED_RECORDS, self._missed)

    def _take_one(self, name: str, value: Any) -> None:
        """Store a step's value in the draft. If that fails, keep the other values of the step."""
        try:
            self._draft.take(name, value)
        except Exception:
            self.failed()

    def _write_if_due(self) -> None:
        self._finish()
        now = self.clock()
        if self._ring is None or now - self._written_at >= SAMPLE_SECONDS:
            self._write(now)

    def _finish(self) -> None:
        """If the record of the last step is missing, write it before values of the next step are stored."""
        if self.row[_STEP] == self.row[_STEP]:
            self._write(self.row[TIME])

    def _write(self, now: float) -> None:
        ring, stepped_at = self._prepare(now), self.row[TIME]
        ring.write(now)
        self.row[TIME] = stepped_at
        self._written_at = now
        self.row[_FLEETING] = _NOTHING

    def _prepare(self, now: float) -> RingWriter:
        """If needed, create the ring. Store numbers that have arrived from devices and from samplers."""
        ring = self._ring or self._open()
        if self._draft.waiting:
            self._draft.collect()
        if now - self._sampled_at >= SAMPLE_SECONDS:
            self._sampled_at = now
            self._sample()
        return ring

    def _sample(self) -> None:
        for sampler in self.samplers:
            try:
                for name, value in sampler().items():
                    self.row[INDEX[name]] = float(value)
            except Exception:
                self.failed()

    def _open(self) -> RingWriter:
        """Return the ring. If there is no ring, create it. The caller must hold the turn (see `_in_turn`)."""
        if self._ring is None:
            assert self._folder is not None
            from .answers import ranks  # imported late, because most Python processes are not ranks
            from .stacks import start_answering

            (rank, local_rank), started = ranks(self._environ), self.clock()
            name = f"{rank}-{os.getpid()}-{started * 1e9:.0f}.ring"
            try:
                ring = RingWriter(self._folder / name, self._draft, rank, local_rank, started)
            except Exception:
                self._off = True  # there is no folder or no space, so do not retry in each step
                raise
            self.row = self._draft.cells
            self._events = EventFile(ring.path.with_suffix(".jsonl"), clock=self.clock)
            self._ring = ring
            start_answering(self, str(self._ring.path))
        return self._ring


_current: Probe | None = None


def current() -> Probe:
    """Return this process's probe. A probe that has no folder does nothing."""
    global _current
    if _current is None:
        folder = os.environ.get(FOLDER_VARIABLE)
        on = folder and os.environ.get(SWITCH_VARIABLE) != "0"
        _current = Probe(Path(folder) if on and folder else None)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=_forked)
    return _current


def use(probe: Probe) -> None:
    """Make `probe` the probe of this process. The process must not have an agent."""
    global _current
    current()
    _current = probe


def _forked() -> None:
    if _current is not None:
        _current.forked()
