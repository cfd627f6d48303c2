"""The numbers that one row of the Runs page shows, of all runs at once and at little cost."""

from __future__ import annotations

import json
from collections.abc import Mapping

from stallwatch_dashboard.overview import Numbers
from stallwatch_dashboard.sources.pulses import Pulse

Which = tuple[int | None, str]  #: rank and remaining labels
Latest = Mapping[str, Mapping[Which, float]]  #: newest values of one run by metric, without ``stallwatch_``

#: Every metric that a row is made of.
METRICS = (
    "step",
    "target_steps",
    "loss",
    "trace_cache_invalidations_total",
    "memory_allocated_bytes",
    "memory_reserved_bytes",
    "memory_peak_bytes",
    "host_memory_bytes",
    "host_memory_limit_bytes",
    "phase",
    "stalled",
    "stalled_seconds_total",
    "step_duration_seconds_sum",
    "step_duration_seconds_count",
    "last_progress_timestamp_seconds",
    "stall_threshold_seconds",
    "end_timestamp_seconds",
)
_MEMORY = ("memory_allocated_bytes", "memory_reserved_bytes", "memory_peak_bytes", "host_memory_bytes")


def glance(latest: Latest, pulse: Pulse, *, now: float) -> Numbers:
    """One run's numbers from its newest values and its `pulse`. Pure."""

    def values(metric: str) -> list[float]:
        return list(latest.get(metric, {}).values())

    def highest(metric: str) -> float | None:
        return max(values(metric), default=None)

    loss = latest.get("loss", {})
    stepping, steps = highest("step_duration_seconds_sum"), highest("step_duration_seconds_count")
    # Right after the first scrape there is no difference of two yet: the mean of all steps so far.
    mean = stepping / steps if stepping is not None and steps else None
    phase = _phase(latest.get("phase", {}))
    ending, ended_at = _ending(latest.get("end_timestamp_seconds", {}))
    progressed_at, alarm_at = _silence(latest, phase)
    return Numbers(
        step=highest("step"),
        total_steps=highest("target_steps"),
        loss=loss[min(loss, key=lambda which: (which[0] is None, which[0] or 0))] if loss else None,
        step_seconds=pulse.recent if pulse.recent is not None else mean,
        baseline_seconds=pulse.baseline,
        invalidations=highest("trace_cache_invalidations_total") or 0.0,
        memory_bytes=next((found for name in _MEMORY if (found := highest(name)) is not None), None),
        host_memory_bytes=highest("host_memory_bytes"),
        host_memory_limit_bytes=highest("host_memory_limit_bytes"),
        phase=phase,
        losses=pulse.losses,
        stalled_seconds=highest("stalled_seconds_total"),
        stepping_seconds=stepping,
        started_at=pulse.started_at,
        ended_at=ended_at,
        ending=ending,
        overdue=highest("stalled") == 1 if latest.get("stalled") else alarm_at is not None and now > alarm_at,
        progressed_at=progressed_at,
        alarm_at=alarm_at,
    )


def _phase(states: Mapping[Which, float]) -> str:
    return next((_label(which, "stallwatch_phase") for which, on in states.items() if on), "")


def _ending(moments: Mapping[Which, float]) -> tuple[str, float | None]:
    if not moments:
        return "", None
    which = max(moments, key=lambda one: moments[one])
    return _label(which, "ending"), moments[which]


def _silence(latest: Latest, phase: str) -> tuple[float | None, float | None]:
    """The last sign of progress, and when the silence since then becomes a stall; Unix seconds."""
    progressed = max(latest.get("last_progress_timestamp_seconds", {}).values(), default=0.0)
    limits = {
        _label(which, "phase"): seconds
        for which, seconds in latest.get("stall_threshold_seconds", {}).items()
    }
    limit = limits.get(phase or "train")
    if not progressed:
        return None, None
    return progressed, None if limit is None else progressed + limit


def _label(which: Which, name: str) -> str:
    return str(json.loads(which[1]).get(name, "")) if which[1] else ""
