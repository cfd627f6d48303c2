"""The state of every run in one row each: what the Runs page and the head of the Run page show."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import pandas as pd

from stallwatch_dashboard.frames import RunFrames, Series, durations
from stallwatch_exporter.incident import Incident
from stallwatch_exporter.runfolder import AgentInfo
from stallwatch_rules.records import Progress

State = Literal["starting", "training", "stalled", "degraded", "failed", "finished", "stale"]
STALE_SECONDS = 10.0
#: Most urgent first: the order of the table.
STATES: tuple[State, ...] = ("stalled", "failed", "stale", "degraded", "starting", "training", "finished")

_BASELINE_STEPS = 20
_RECENT_STEPS = 5


@dataclass(frozen=True)
class RunRow:
    """One run at one moment. Times are Unix seconds."""

    run: str
    state: State
    host: str = ""
    command: tuple[str, ...] = ()
    step: float | None = None
    total_steps: float | None = None
    loss: float | None = None
    step_seconds: float | None = None  #: of the last few steps
    baseline_seconds: float | None = None  #: of this run's own first steps
    invalidations: float = 0
    memory_bytes: float | None = None
    open_incidents: tuple[Incident, ...] = ()
    started_at: float | None = None
    ended_at: float | None = None
    seen: float | None = None  #: when the agent was last heard of
    exit: str = ""  #: how it ended, in words

    def seconds(self, now: float) -> float | None:
        """How long the run has been going, or went."""
        if self.started_at is None:
            return None
        return (self.ended_at or (self.seen if self.state == "stale" else None) or now) - self.started_at


def state_of(
    info: AgentInfo | None,
    *,
    alive: bool,
    seen: float | None,
    now: float,
    incidents: Sequence[Incident],
    step: float | None,
) -> State:
    """The one word for a run. An agent that is not heard of makes everything else it said old news."""
    if info is not None and info.ended_at is not None:
        return "failed" if info.state == "failed" else "finished"
    if not alive or seen is None or now - seen > STALE_SECONDS:
        return "stale"
    open_ones = [incident for incident in incidents if incident.status == "open"]
    if (info is not None and info.state == "stalled") or any(i.kind == "stall" for i in open_ones):
        return "stalled"
    if any(incident.harm == "degrading" for incident in open_ones):
        return "degraded"
    return "training" if step else "starting"


def recent_and_baseline(step_seconds: pd.DataFrame) -> tuple[float | None, float | None]:
    """Median seconds of the last steps, and of the run's early ones (not the very first, which compiles)."""
    if step_seconds.empty:
        return None, None
    times = step_seconds.sort_values("t", kind="stable")["v"]
    recent = float(times.tail(_RECENT_STEPS).median())
    first = times.iloc[1 : 1 + _BASELINE_STEPS]
    return recent, float(first.median()) if len(first) >= _RECENT_STEPS else None


@dataclass(frozen=True)
class Numbers:
    """The newest numbers of a run."""

    step: float | None = None
    total_steps: float | None = None
    loss: float | None = None
    step_seconds: float | None = None
    baseline_seconds: float | None = None
    invalidations: float = 0
    memory_bytes: float | None = None


def numbers_from_store(store: Series, run: str) -> Numbers:
    """What was scraped last. Cheap: of the history it asks for the step times alone."""

    def newest_of(name: str) -> list[float]:
        return list(store.latest(run, f"stallwatch_{name}").values())

    sums = store.series(run, "stallwatch_step_duration_seconds_sum")
    counts = store.series(run, "stallwatch_step_duration_seconds_count")
    recent, baseline = recent_and_baseline(durations(sums, counts))
    if recent is None and not counts.empty and counts["v"].iloc[-1]:
        recent = float(sums["v"].iloc[-1] / counts["v"].iloc[-1])  # the first scrape: the mean of all steps
    loss = store.latest(run, "stallwatch_loss")
    return Numbers(
        step=max(newest_of("step"), default=None),
        total_steps=max(newest_of("target_steps"), default=None),
        loss=loss[min(loss, key=lambda which: (which[0] is None, which[0] or 0))] if loss else None,
        step_seconds=recent,
        baseline_seconds=baseline,
        invalidations=max(newest_of("trace_cache_invalidations_total"), default=0.0),
        memory_bytes=max(_memory(newest_of), default=None),
    )


def _memory(newest_of: Callable[[str], list[float]]) -> list[float]:
    """Of the accelerators where the log tells, else of all processes."""
    kinds = ("memory_allocated_bytes", "memory_reserved_bytes", "memory_peak_bytes", "host_memory_bytes")
    return next((found for kind in kinds if (found := newest_of(kind))), [])


def numbers_from_progress(told: Progress) -> Numbers:
    """What the diagnosis at a run's end says of its progress: for a run that nobody scraped."""
    return Numbers(step=told.last_step, total_steps=told.total_steps, loss=told.last_loss)


def numbers_from_frames(found: RunFrames) -> Numbers:
    """The same from a run's whole history, as read back from its log copies."""
    recent, baseline = recent_and_baseline(found.step_seconds)
    return Numbers(
        step=_last(found.steps),
        total_steps=found.total_steps,
        loss=_last(found.loss),
        step_seconds=recent,
        baseline_seconds=baseline,
        invalidations=_last(found.invalidations) or 0,
        memory_bytes=float(found.memory["v"].max()) if not found.memory.empty else None,
    )


def make_row(
    run: str,
    info: AgentInfo | None,
    numbers: Numbers,
    incidents: Sequence[Incident],
    *,
    alive: bool,
    seen: float | None,
    now: float,
) -> RunRow:
    """Everything known of one run, as one row."""
    open_ones = tuple(incident for incident in incidents if incident.status == "open")
    state = state_of(info, alive=alive, seen=seen, now=now, incidents=open_ones, step=numbers.step)
    told = max((i.total_steps for i in incidents if i.total_steps), default=None)
    values = {**vars(numbers), "total_steps": numbers.total_steps or told}
    return RunRow(
        run=run,
        state=state,
        host=info.host if info else "",
        command=tuple(info.command) if info else (),
        **values,
        open_incidents=open_ones,
        started_at=info.started_at if info else None,
        ended_at=info.ended_at if info else None,
        seen=seen,
        exit=info.ending.detail if info and info.ending else "",
    )


def newest(incidents: Sequence[Incident]) -> Incident | None:
    """The open incident that a reader should see first: critical before warning, then the newest."""
    ranking = {"critical": 2, "warning": 1, "info": 0}
    open_ones = [incident for incident in incidents if incident.status == "open"]
    return max(open_ones, key=lambda i: (i.kind == "stall", ranking[i.severity], i.opened_at), default=None)


def in_order(rows: Sequence[RunRow]) -> list[RunRow]:
    """Runs that need someone first; within a state the newest first; ended runs by time only."""

    def key(row: RunRow) -> tuple[int, float]:
        urgent = row.ended_at is None
        return (STATES.index(row.state) if urgent else len(STATES), -(row.ended_at or row.started_at or 0.0))

    return sorted(rows, key=key)


def _last(frame: pd.DataFrame) -> float | None:
    return None if frame.empty else float(frame.sort_values("t", kind="stable")["v"].iloc[-1])
