"""The numbers of one run, as Prometheus reads them. ``docs/metrics.md`` describes each.

Every agent has a registry of its own. Labels are `run` and `rank`, and where needed a phase or a rule: never
text of a log. A rank that is not known is the empty label, which to Prometheus is none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import get_args

from prometheus_client import Enum, Histogram, Info

from stallwatch_exporter import steady
from stallwatch_exporter.rings.reader import Record
from stallwatch_exporter.serving.page import Family, RunRegistry
from stallwatch_rules import __version__
from stallwatch_rules.diagnosis.findings import TRACE_CACHE
from stallwatch_rules.records import Match, Phase, Sample
from stallwatch_rules.text.lazy import lazy

_BUCKETS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 15, 30, 60, 120, 300, 600, 1800, 3600, 7200)
_MOST_RANKS = 100_000
# Numbers that samples carry, by the gauge that shows the last one.
_GAUGES = {
    "loss": ("stallwatch_loss", "Last training loss that was told."),
    "grad_norm": ("stallwatch_grad_norm", "Last gradient norm that was told."),
    "learning_rate": ("stallwatch_learning_rate", "Last learning rate that was told."),
    "loss_scale": ("stallwatch_loss_scale", "Last loss scale of mixed precision that was told."),
    "memory_allocated_bytes": (
        "stallwatch_memory_allocated_bytes",
        "Accelerator memory allocated, where log or probe tells.",
    ),
    "memory_peak_bytes": (
        "stallwatch_memory_peak_bytes",
        "Highest accelerator memory allocated, where log or probe tells.",
    ),
    "memory_reserved_bytes": (
        "stallwatch_memory_reserved_bytes",
        "Accelerator memory that the allocator holds, by the probe.",
    ),
    "resident_bytes": ("stallwatch_rank_resident_bytes", "Resident memory of a rank, by the probe."),
}
_WARNINGS = "warnings"
_INVALIDATIONS = ("invalidations_mismatch", "invalidations_short", "invalidations_external")


class RunMetrics:
    """The metrics of one run; all methods are cheap and safe to call while a scrape is under way."""

    def __init__(self, run: str) -> None:
        self.run = run
        self.registry = RunRegistry(run)
        by_rank, by_run = ("run", "rank"), ("run",)

        def counter(name: str, text: str, labels: Iterable[str] = by_run) -> Family:
            return self.registry.family("counter", f"stallwatch_{name}", text, labels)

        def gauge(name: str, text: str, labels: Iterable[str] = by_run) -> Family:
            return self.registry.family("gauge", name, text, labels)

        self._steps = counter(
            "steps", "Optimizer steps done; steps that a restart repeats count again."
        ).labels(run)
        self._step = gauge("stallwatch_step", "Number of the last optimizer step.")
        self._target = gauge("stallwatch_target_steps", "Optimizer steps that the run should take.")
        self._last_step = gauge(
            "stallwatch_last_step_timestamp_seconds", "Unix time at which a step was last seen.", by_rank
        )
        self._threshold = gauge(
            "stallwatch_stall_threshold_seconds",
            "Quiet time after which this phase counts as stalled, learnt from the run.",
            ("run", "phase"),
        )
        self._durations = Histogram(
            "stallwatch_step_duration_seconds",
            "Time per optimizer step.",
            by_run,
            buckets=_BUCKETS,
            registry=self.registry,
        ).labels(run)
        self._phase = Enum(
            "stallwatch_phase",
            "What the run is doing.",
            by_run,
            states=list(get_args(Phase)),
            registry=self.registry,
        ).labels(run)
        self._values = {key: gauge(name, text, by_rank) for key, (name, text) in _GAUGES.items()}
        self._skipped = counter("skipped_steps", "Optimizer steps skipped for overflow.", by_rank)
        self._host_memory = gauge(
            "stallwatch_host_memory_bytes", "Resident memory of the command and all its processes."
        )
        self._host_memory_limit = gauge(
            "stallwatch_host_memory_limit_bytes", "Memory that the command may use before the kernel ends it."
        )
        self._invalidations = counter(
            "trace_cache_invalidations",
            "ZeRO-3 trace-cache invalidations, counted by the probe or else as logged.",
            by_rank,
        )
        self._rank_step = gauge(
            "stallwatch_rank_step", "Last optimizer step of a rank, by the probe.", by_rank
        )
        self._retries = counter(
            "allocation_retries", "Allocations that had to free cached memory first, by the probe.", by_rank
        )
        self._oom = counter(
            "out_of_memory", "Allocations that failed for lack of memory, by the probe.", by_rank
        )
        self._warnings = counter("warnings", "Warnings, counted by the probe or else as logged.", by_rank)
        self._matches = counter("rule_matches", "Matches of a rule of the catalogue.", ("run", "rule"))
        self._open = gauge(
            "stallwatch_incident_open",
            "1 while an incident of the rule is open.",
            ("run", "rule", "severity"),
        )
        self._stalled = counter("stalled_seconds", "Time spent in stalls.").labels(run)
        self._stalled_now = gauge("stallwatch_stalled", "1 while the run is stalled, else 0.").labels(run)
        self._stalled_now.set(0)
        self._lines = counter("log_lines", "Log lines read.").labels(run)
        self._bytes = counter("log_bytes", "Log bytes read.").labels(run)
        self._dropped = counter(
            "dropped_records", "Log lines not mined or not copied, and records of the probe not read."
        ).labels(run)
        self.milestones = Milestones(run, self.registry)
        self._info = Info(
            "stallwatch_run", "The run and the versions it uses.", by_run, registry=self.registry
        )
        self._dropped_total = 0
        self._steps_at: int | None = None
        self._skipped_until: dict[str, float] = {}
        self._hooked: set[str] = set()  # what the probe tells, so that the log need not
        self._counted: dict[tuple[str, str], float] = {}
        self.phase("init")

    # ---- what was read

    def read(self, lines: int, size: int) -> None:
        """So many lines and bytes of log came in."""
        self._lines.inc(lines)
        self._bytes.inc(size)

    def sample(self, sample: Sample, *, hooked: bool = False) -> None:
        """Numbers of one line, or with `hooked` of a rank itself."""
        rank = _rank(sample.rank)
        for key, value in sample.values.items():
            gauge = self._values.get(key)
            if gauge is not None and (hooked or key not in self._hooked):
                gauge.labels(self.run, rank).set(value)
        self._skip(rank, sample.values)

    def _skip(self, rank: str, values: dict[str, float]) -> None:
        """Overflows come one by one; DeepSpeed's step line tells their sum too."""
        before = self._skipped_until.get(rank, 0.0)
        now = max(before + (1 if values.get("overflow") else 0), values.get("skipped_steps", 0.0))
        if now > before:
            self._skipped.labels(self.run, rank).inc(now - before)
            self._skipped_until[rank] = now

    def hooked(self, record: Record) -> None:
        """What a rank told of itself."""
        rank, values = _rank(record.rank), record.values
        for key in values.keys() - self._hooked:
            if key in self._values:  # what the log told, perhaps under no rank, would stand there for ever
                self._values[key].clear()
        self._hooked.update(values)
        self.sample(Sample(record.rank, record.time, values=values), hooked=True)
        if "step" in values:
            self._rank_step.labels(self.run, rank).set(values["step"])
        if _INVALIDATIONS[0] in values:
            total = sum(values.get(name, 0.0) for name in _INVALIDATIONS)
            self._count(self._invalidations, _INVALIDATIONS[0], rank, total)
        for name, metric in (
            ("allocation_retries", self._retries),
            ("out_of_memory", self._oom),
            (_WARNINGS, self._warnings),
        ):
            if name in values:
                self._count(metric, name, rank, values[name])

    def _count(self, metric: Family, name: str, rank: str, total: float) -> None:
        """A running total of a rank, which begins anew when the rank does."""
        before = self._counted.get((name, rank), 0.0)
        metric.labels(self.run, rank).inc(total - before if total >= before else total)
        self._counted[name, rank] = total

    def match(self, match: Match) -> None:
        """A rule fired."""
        self._matches.labels(self.run, match.rule).inc()
        if match.rule == TRACE_CACHE and _INVALIDATIONS[0] not in self._hooked:
            self._invalidations.labels(self.run, _rank(match.line.rank)).inc()

    def warning(self, rank: int | None) -> None:
        """A warning was logged."""
        if _WARNINGS in self._hooked:
            return  # the ranks count their own
        self._warnings.labels(self.run, _rank(rank)).inc()

    # ---- how it goes

    def progress(self, step: int | None, total: int | None, *, counted: bool = False) -> None:
        """How far the run is. After a restart from a checkpoint the repeated steps count again.

        With `counted` the steps until this one are in the sum already, perhaps by other numbers.
        """
        if step is not None:
            before = self._steps_at
            if not counted:
                self._steps.inc(step if before is None else max(0, step - before))
            self._steps_at = step
            self._step.labels(self.run).set(step)
        if total is not None:
            self._target.labels(self.run).set(total)

    def stepped(self, rank: int | None, when: float) -> None:
        """A rank made a step."""
        self._last_step.labels(self.run, _rank(rank)).set(steady.wall(when))

    def step_took(self, seconds: float, steps: int = 1) -> None:
        """The last `steps` steps took so long each."""
        for _ in range(min(steps, 1000)):
            self._durations.observe(seconds)

    def phase(self, phase: Phase) -> None:
        """What the run is doing now."""
        self._phase.state(phase)

    def thresholds(self, thresholds: dict[Phase, float]) -> None:
        """The stall thresholds learnt until now."""
        for phase, seconds in thresholds.items():
            self._threshold.labels(self.run, phase).set(seconds)

    def stalled(self, seconds: float) -> None:
        """So much more time was spent in a stall."""
        self._stalled.inc(seconds)

    def stalled_now(self, stalled: bool) -> None:
        """Whether the run is stalled: suspicions are checked, and patience is over."""
        self._stalled_now.set(int(stalled))

    def incident(self, rule: str, severity: str, is_open: bool) -> None:
        """An incident opened or was resolved."""
        self._open.labels(self.run, rule, severity).set(1 if is_open else 0)

    def host_memory(self, size: int) -> None:
        """Resident memory of all processes of the command."""
        self._host_memory.labels(self.run).set(size)

    def host_memory_limit(self, size: int) -> None:
        """How much memory there is for the command."""
        self._host_memory_limit.labels(self.run).set(size)

    def dropped(self, total: int) -> None:
        """How many records have been dropped until now."""
        self._dropped.inc(max(0, total - self._dropped_total))
        self._dropped_total = max(total, self._dropped_total)

    def identity(self, host: str, versions: Mapping[str, str]) -> None:
        """Where the run is and which versions took part; what is no short word is left out."""
        facts = {"host": host, "stallwatch": __version__, **versions}
        self._info.labels(self.run).info(
            {
                name.replace("-", "_"): value
                for name, value in facts.items()
                if _NAME.fullmatch(name) and _SHORT.fullmatch(value)
            }
        )


_NAME = lazy(r"[a-z][a-z0-9_-]{0,40}")
_SHORT = lazy(r"[\w.+:-]{1,60}")


def _rank(rank: int | None) -> str:
    return "" if rank is None or rank >= _MOST_RANKS else str(rank)


_RUN = ("run",)


class Milestones:
    """The gauges of one run that hold a moment, in the `registry` of its other metrics."""

    def __init__(self, run: str, registry: RunRegistry) -> None:
        self._run = run

        def gauge(name: str, text: str, labels: tuple[str, ...] = _RUN) -> Family:
            return registry.family("gauge", f"stallwatch_{name}", text, labels)

        self._progress = gauge(
            "last_progress_timestamp_seconds",
            "Unix time of the last sign of progress, against which the stall threshold is held.",
        )
        self._checkpoint = gauge(
            "last_checkpoint_timestamp_seconds", "Unix time at which the last checkpoint was done."
        )
        self._interval = gauge(
            "checkpoint_interval_seconds", "Longest time between two checkpoints of this run until now."
        )
        self._end = gauge("end_timestamp_seconds", "Unix time at which the run ended.", ("run", "ending"))
        self._rank_up = gauge(
            "rank_up", "1 while the process of a rank is there, by the probe.", ("run", "rank")
        )
        self._saved_at: float | None = None
        self._longest = 0.0

    def progressed(self, when: float) -> None:
        """The last sign of progress was at `when`."""
        self._progress.labels(self._run).set(steady.wall(when))

    def saved(self, when: float) -> None:
        """A checkpoint was done at `when`."""
        if self._saved_at is not None and when > self._saved_at:
            self._longest = max(self._longest, when - self._saved_at)
            self._interval.labels(self._run).set(self._longest)
        self._saved_at = when
        self._checkpoint.labels(self._run).set(steady.wall(when))

    def ended(self, when: float, ending: str) -> None:
        """The run ended, or nobody watches it any more (``unknown``)."""
        self._end.labels(self._run, ending).set(steady.wall(when))

    def ranks(self, up: Mapping[int, object]) -> None:
        """Each known rank, with something true while a process of it is there."""
        for rank, alive in up.items():
            self._rank_up.labels(self._run, str(rank)).set(1 if alive else 0)
