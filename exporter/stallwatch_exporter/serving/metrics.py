"""Maintain the metrics of one run for Prometheus. ``docs/metrics.md`` describes each metric.

Labels never contain the text of a log. If the rank is unknown, the label `rank` is empty, which Prometheus
treats as no label.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal, get_args

from prometheus_client import CollectorRegistry, Counter, Enum, Gauge, Histogram, Info
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from stallwatch_exporter import steady
from stallwatch_exporter.rings.reader import Record
from stallwatch_rules import __version__
from stallwatch_rules.diagnosis.findings import TRACE_CACHE
from stallwatch_rules.records import Match, Phase, Sample
from stallwatch_rules.text.lazy import lazy

if TYPE_CHECKING:
    from stallwatch_exporter.runs.runfolder import AgentInfo

_BUCKETS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 15, 30, 60, 120, 300, 600, 1800, 3600, 7200)
_MOST_RANKS = 100_000
#: Maximum number of ranks that have metrics. A log can contain any number of ranks, and each rank has a dozen
#: series.
MOST_LABELS = 20_000
_BY_RUN, _BY_RANK = ("run",), ("run", "rank")
# Gauges and counters by kind and labels. A name (without "stallwatch_" and "_total") maps to a help text.
_FAMILIES: Mapping[tuple[Literal["gauge", "counter"], tuple[str, ...]], Mapping[str, str]] = {
    ("counter", _BY_RUN): {
        "steps": "Completed optimizer steps. Steps that a restart repeats count again.",
        "stalled_seconds": "Time spent in stalls.",
        "log_lines": "Log lines read.",
        "log_bytes": "Log bytes read.",
        "dropped_records": "Log lines that were not analyzed or not copied, and lost records of the probe.",
    },
    ("gauge", _BY_RUN): {
        "step": "Number of the last optimizer step.",
        "target_steps": "Number of optimizer steps that the run is configured to take.",
        "host_memory_bytes": "Resident memory of the command and all its processes.",
        "host_memory_limit_bytes": "Memory that the command can use before the kernel kills it.",
        "slowdown_ratio": "Share of the throughput that the run loses by waiting for a slow host.",
        "stalled": "1 while the run is stalled, otherwise 0.",
        "last_progress_timestamp_seconds": "Unix time of the last sign of progress, from which the stall"
        " threshold is measured.",
        "last_checkpoint_timestamp_seconds": "Unix time at which the last checkpoint was complete.",
        "checkpoint_interval_seconds": "Longest time between two checkpoints of this run so far.",
    },
    ("gauge", _BY_RANK): {
        "last_step_timestamp_seconds": "Unix time at which a step was last observed.",
        "loss": "Last reported training loss.",
        "grad_norm": "Last reported gradient norm.",
        "learning_rate": "Last reported learning rate.",
        "loss_scale": "Last reported loss scale of mixed precision.",
        "memory_allocated_bytes": "Allocated accelerator memory, as reported by the log or the probe.",
        "memory_peak_bytes": "Highest allocated accelerator memory, as reported by the log or the probe.",
        "memory_reserved_bytes": "Accelerator memory that the allocator reserves, as reported by the probe.",
        "rank_resident_bytes": "Resident memory of a rank, as reported by the probe.",
        "rank_step": "Last optimizer step of a rank, as reported by the probe.",
        "rank_up": "1 while the process of a rank is running, according to the probe.",
    },
    ("gauge", ("run", "phase")): {
        "stall_threshold_seconds": "Time without progress after which this phase counts as stalled, learned"
        " from the run.",
    },
    ("counter", _BY_RANK): {
        "skipped_steps": "Optimizer steps that were skipped because of an overflow.",
        "trace_cache_invalidations": "ZeRO-3 trace-cache invalidations, counted by the probe if possible,"
        " otherwise from the log.",
        "allocation_retries": "Allocations that first had to free cached memory, as counted by the probe.",
        "out_of_memory": "Allocations that failed for lack of memory, as counted by the probe.",
        "warnings": "Warnings, counted by the probe if possible, otherwise from the log.",
    },
    ("counter", ("run", "rule")): {
        "rule_matches": "Matches of a rule of the catalogue.",
    },
    ("gauge", ("run", "rule", "severity")): {
        "incident_open": "1 while an incident of the rule is open.",
    },
    ("gauge", ("run", "state")): {
        "hosts": "Number of hosts of a multi-host run, by state, as reported by the run's coordinator.",
    },
    ("gauge", ("run", "ending")): {
        "end_timestamp_seconds": "Unix time at which the run ended.",
    },
}
# Names of the values in a sample, each with the gauge that shows the last value.
_SHOWN = {
    **{name: name for name in _FAMILIES["gauge", _BY_RANK] if not name.startswith(("rank_", "last_"))},
    "resident_bytes": "rank_resident_bytes",
}
_TOTALS = ("allocation_retries", "out_of_memory", "warnings")  # running totals in a rank's records
_INVALIDATIONS = ("invalidations_mismatch", "invalidations_short", "invalidations_external")
_NAME = lazy(r"[a-z][a-z0-9_-]{0,40}")
_SHORT = lazy(r"[\w.+:-]{1,60}")


class RunRegistry(CollectorRegistry):
    """Registry of the metrics of one run, which omits creation times and adds the scrape's duration."""

    def __init__(self, run: str) -> None:
        super().__init__(auto_describe=True)
        self.run = run

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics."""
        start = time.perf_counter()
        for metric in super().collect():
            metric.samples = [sample for sample in metric.samples if not sample.name.endswith("_created")]
            yield metric
        took = GaugeMetricFamily(
            "stallwatch_scrape_duration_seconds",
            "Seconds that it took to collect these metrics.",
            labels=["run"],
        )
        took.add_metric([self.run], time.perf_counter() - start)
        yield took


class RunMetrics:
    """Metrics of one run. All methods are fast, and safe to call during a scrape."""

    def __init__(self, run: str) -> None:
        self.run = run
        self.registry = RunRegistry(run)
        self._families: dict[str, Any] = {
            name: {"gauge": Gauge, "counter": Counter}[kind](
                f"stallwatch_{name}", text, labels, registry=self.registry
            )
            for (kind, labels), families in _FAMILIES.items()
            for name, text in families.items()
        }
        self._durations = Histogram(
            "stallwatch_step_duration_seconds",
            "Time per optimizer step.",
            _BY_RUN,
            buckets=_BUCKETS,
            registry=self.registry,
        ).labels(run)
        self._phase = Enum(
            "stallwatch_phase",
            "Current phase of the run.",
            _BY_RUN,
            states=list(get_args(Phase)),
            registry=self.registry,
        ).labels(run)
        self._info = Info(
            "stallwatch_run", "Host, job, and software versions of the run.", _BY_RUN, registry=self.registry
        )
        self._labelled: set[int] = set()
        self._dropped_total = 0
        self._steps_at: int | None = None
        self._skipped_until: dict[str, float] = {}
        # Names of values that the probe reports. For these names, values in the log are ignored.
        self._hooked: set[str] = set()
        self._counted: dict[tuple[str, str], float] = {}
        self._saved_at: float | None = None
        self._longest_interval = 0.0  # longest interval between two checkpoints
        for name in _FAMILIES["counter", _BY_RUN]:
            self._series(name)  # create the series, which starts at 0
        self.stalled_now(False)
        self.phase("init")

    def _series(self, name: str, *labels: str) -> Any:
        return self._families[name].labels(self.run, *labels)

    def read(self, lines: int, size: int) -> None:
        """Count lines and bytes that were read from logs."""
        self._series("log_lines").inc(lines)
        self._series("log_bytes").inc(size)

    def sample(self, sample: Sample, *, hooked: bool = False) -> None:
        """Set gauges from the values in a log line or, if `hooked` is true, from a rank's probe."""
        rank = self._rank(sample.rank)
        for key, value in sample.values.items():
            if key in _SHOWN and (hooked or key not in self._hooked):
                self._series(_SHOWN[key], rank).set(value)
        self._skip(rank, sample.values)

    def _skip(self, rank: str, values: dict[str, float]) -> None:
        """Count skipped steps: one for each reported overflow, or the total in a step line from DeepSpeed."""
        before = self._skipped_until.get(rank, 0.0)
        now = max(before + (1 if values.get("overflow") else 0), values.get("skipped_steps", 0.0))
        if now > before:
            self._series("skipped_steps", rank).inc(now - before)
            self._skipped_until[rank] = now

    def hooked(self, record: Record) -> None:
        """Set the gauges and counters from a rank's record."""
        rank, values = self._rank(record.rank), record.values
        for key in values.keys() - self._hooked:
            if key in _SHOWN:  # a value from the log, which might have no rank, would no longer be updated
                self._families[_SHOWN[key]].clear()
        self._hooked.update(values)
        self.sample(Sample(record.rank, record.time, values=values), hooked=True)
        if "step" in values:
            self._series("rank_step", rank).set(values["step"])
        if _INVALIDATIONS[0] in values:
            total = sum(values.get(name, 0.0) for name in _INVALIDATIONS)
            self._count("trace_cache_invalidations", rank, total)
        for name in _TOTALS:
            if name in values:
                self._count(name, rank, values[name])

    def _count(self, name: str, rank: str, total: float) -> None:
        """Add the increase of a rank's running total, which restarts at zero when the rank restarts."""
        before = self._counted.get((name, rank), 0.0)
        self._series(name, rank).inc(total - before if total >= before else total)
        self._counted[name, rank] = total

    def match(self, match: Match) -> None:
        """Count a match for a rule."""
        self._series("rule_matches", match.rule).inc()
        if match.rule == TRACE_CACHE and _INVALIDATIONS[0] not in self._hooked:
            self._series("trace_cache_invalidations", self._rank(match.line.rank)).inc()

    def warning(self, rank: int | None) -> None:
        """Count a logged warning."""
        if "warnings" not in self._hooked:  # otherwise, the ranks count their own warnings
            self._series("warnings", self._rank(rank)).inc()

    def progress(self, step: int | None, total: int | None, *, counted: bool = False) -> None:
        """Set the run's step. Steps that are repeated after a restart from a checkpoint count again.

        If `counted` is true, the steps up to this step have already been counted, possibly under different
        numbers.
        """
        if step is not None:
            before = self._steps_at
            if not counted:
                self._series("steps").inc(step if before is None else max(0, step - before))
            self._steps_at = step
            self._series("step").set(step)
        if total is not None:
            self._series("target_steps").set(total)

    def stepped(self, rank: int | None, when: float) -> None:
        """Set the time of a rank's last step."""
        self._series("last_step_timestamp_seconds", self._rank(rank)).set(steady.wall(when))

    def step_took(self, seconds: float, steps: int = 1) -> None:
        """Record that each of the last `steps` steps took `seconds`."""
        for _ in range(min(steps, 1000)):
            self._durations.observe(seconds)

    def phase(self, phase: Phase) -> None:
        """Set the run's current phase."""
        self._phase.state(phase)

    def thresholds(self, thresholds: dict[Phase, float]) -> None:
        """Set the stall thresholds learned so far."""
        for phase, seconds in thresholds.items():
            self._series("stall_threshold_seconds", phase).set(seconds)

    def stalled(self, seconds: float) -> None:
        """Add seconds spent in a stall."""
        self._series("stalled_seconds").inc(seconds)

    def stalled_now(self, stalled: bool) -> None:
        """Set whether the run is stalled. Only a confirmed stall counts."""
        self._series("stalled").set(int(stalled))

    def incident(self, rule: str, severity: str, is_open: bool) -> None:
        """Set whether an incident is open for a rule."""
        self._series("incident_open", rule, severity).set(1 if is_open else 0)

    def host_memory(self, size: int) -> None:
        """Set the resident memory of all processes of the command, in bytes."""
        self._series("host_memory_bytes").set(size)

    def host_memory_limit(self, size: int) -> None:
        """Set the memory available to the command, in bytes."""
        self._series("host_memory_limit_bytes").set(size)

    def progressed(self, when: float) -> None:
        """Set the time of the last sign of progress."""
        self._series("last_progress_timestamp_seconds").set(steady.wall(when))

    def saved(self, when: float) -> None:
        """Record that a checkpoint was complete at `when`."""
        if self._saved_at is not None and when > self._saved_at:
            self._longest_interval = max(self._longest_interval, when - self._saved_at)
            self._series("checkpoint_interval_seconds").set(self._longest_interval)
        self._saved_at = when
        self._series("last_checkpoint_timestamp_seconds").set(steady.wall(when))

    def ended(self, when: float, ending: str) -> None:
        """Record that the run ended or is no longer watched (``unknown``)."""
        self._series("end_timestamp_seconds", ending).set(steady.wall(when))

    def ranks(self, up: Mapping[int, object]) -> None:
        """Set whether each known rank is running. `up` maps a rank to a true value if it has a process."""
        for rank, alive in up.items():
            if label := self._rank(rank):
                self._series("rank_up", label).set(1 if alive else 0)

    def dropped(self, total: int) -> None:
        """Set the number of records dropped so far."""
        self._series("dropped_records").inc(max(0, total - self._dropped_total))
        self._dropped_total = max(total, self._dropped_total)

    def hosts(self, expected: int | None, reporting: int | None, silent: int | None) -> None:
        """Set three metrics: the numbers of expected hosts, reporting hosts, and silent hosts.

        Only the coordinator publishes these metrics. On all other agents, the values are ``None``.
        """
        for state, count in {"expected": expected, "reporting": reporting, "silent": silent}.items():
            if count is not None:
                self._series("hosts", state).set(count)
            else:
                # The library prometheus-client 0.21 raises this error if the series does not exist.
                with suppress(KeyError):
                    self._families["hosts"].remove(self.run, state)

    def slowdown(self, cost: float) -> None:
        """Set the share of the throughput that the run loses by waiting for a slow host."""
        self._series("slowdown_ratio").set(cost)

    def identity(self, info: AgentInfo, versions: Mapping[str, str]) -> None:
        """Set the run's host, job, and versions. Long values are omitted."""
        facts = {"host": info.host_in_run, "stallwatch": __version__, **versions}
        if info.job:  # the label "job" is not used, because Prometheus needs it for its targets
            facts |= {"job_id": info.job, "attempt": str(info.attempt)}
            if info.node is not None:
                facts["node"] = str(info.node)
        self._info.labels(self.run).info(
            {
                name.replace("-", "_"): value
                for name, value in facts.items()
                if _NAME.fullmatch(name) and _SHORT.fullmatch(value)
            }
        )

    def _rank(self, rank: int | None) -> str:
        """Return the label of a rank, or "" if the rank is invalid or there are too many ranks."""
        if rank is None or not 0 <= rank < _MOST_RANKS:
            return ""
        if len(self._labelled) < MOST_LABELS:
            self._labelled.add(rank)
        return str(rank) if rank in self._labelled else ""
