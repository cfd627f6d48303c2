"""Return a run's metrics as pandas frames, which have the same form for scraped metrics and log copies."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from stallwatch_dashboard.data.overview import Numbers
from stallwatch_rules.messages import Text

Floats = NDArray[np.float64]
Which = tuple[int | None, str]  #: a series of a metric: rank and remaining labels
Key = tuple[int | None, str, str]  #: rank, remaining labels, and the agent that reports the series
COLUMNS = {"rank": "Int64", "t": "float64", "v": "float64"}
MOST_RANKS = 8  #: maximum number of lines in a chart; if a run has more ranks, the chart shows some of them


def empty() -> pd.DataFrame:
    return pd.DataFrame({name: pd.Series(dtype=kind) for name, kind in COLUMNS.items()})


@dataclass(frozen=True)
class RunFrames:
    """The metrics of a run as frames with columns ``rank``, ``t``, and ``v``, ordered by rank and time.

    Rows without a ``rank`` describe the entire run. ``t`` is a Unix timestamp in seconds.
    """

    steps: pd.DataFrame = field(default_factory=empty)  #: the step that the run has reached
    loss: pd.DataFrame = field(default_factory=empty)
    grad_norm: pd.DataFrame = field(default_factory=empty)
    learning_rate: pd.DataFrame = field(default_factory=empty)
    step_seconds: pd.DataFrame = field(default_factory=empty)  #: seconds per step, at the end of each step
    threshold: pd.DataFrame = field(default_factory=empty)  #: stall threshold in seconds
    memory: pd.DataFrame = field(default_factory=empty)  #: bytes
    memory_kind: str = ""  #: "allocated", "reserved", "peak", or "host_rss"
    invalidations: pd.DataFrame = field(default_factory=empty)  #: number of invalidations up to each time
    warnings: pd.DataFrame = field(default_factory=empty)  #: number of warnings up to each time
    rank_steps: pd.DataFrame = field(default_factory=empty)  #: the step that each rank has reached
    hosts: Mapping[int, str] = field(default_factory=dict)  #: host of each rank, if the run has several hosts
    seen_at: Mapping[str, float] = field(default_factory=dict)  #: time of each host's last sign of life
    phases: tuple[tuple[float, str], ...] = ()  #: start time and name of each phase
    total_steps: float | None = None
    last_step_at: float | None = None
    rebuilt: bool = False  #: True if the metrics were read from log copies, because nothing was scraped
    notes: tuple[Text, ...] = ()

    def last_memory(self) -> tuple[float, float] | None:
        """Return the highest memory use of any rank at the end of the last step, as a pair of time and bytes.

        If all values are later than that step, use the newest value of each rank.
        """
        held = self.memory
        if self.last_step_at is not None and not (early := held[held["t"] <= self.last_step_at]).empty:
            held = early
        if held.empty:
            return None
        newest = held.groupby("rank", dropna=False)[["t", "v"]].last()
        most = newest.loc[newest["v"] == newest["v"].max()].iloc[-1]
        return float(most["t"]), float(most["v"])

    @property
    def nothing(self) -> bool:
        return all(getattr(self, name).empty for name in _FRAMES)


_FRAMES = tuple(entry.name for entry in fields(RunFrames) if entry.default_factory is empty)
#: Metrics whose values are reported with a step, not between steps.
_STEP_METRICS = ("loss", "grad_norm", "learning_rate")
_LATE_SECONDS = 3.0  #: maximum number of seconds between a step and the scrape of its values
_POINTS = 1200  #: maximum number of points of a metric for most charts: two per pixel of a chart
_RANK_POINTS = 20_000  #: maximum number of points for the steps of all ranks: 128 ranks in 80 time spans
SILENT_SECONDS = 60.0  #: an agent that is silent for this many seconds longer than other agents is gone
_MEMORY = ("allocated", "reserved", "peak")


class NumberStore(Protocol):
    """A source of metrics: the local store or a Prometheus server. Times are Unix timestamps in seconds."""

    @property
    def problem(self) -> Text | None:
        """The reason why metrics are missing, for display on the pages, or `None` if none are missing."""

    def series(self, run: str, metric: str, *, points: int = 1200) -> pd.DataFrame:
        """Return about `points` values of a metric, as a frame with columns ``rank, labels, agent, t, v``."""

    def latest(self, run: str, metric: str) -> dict[Which, float]:
        """Return the newest value of each series in a metric, combined from all agents by `fold`."""

    def summaries(self, runs: Iterable[str], now: float) -> dict[str, Numbers]:
        """Return the values to show in each run's row of the Runs table."""

    def last_seen(self) -> dict[str, float]:
        """Return the time of each run's last sign of life."""

    def hosts(self, run: str) -> dict[str, float]:
        """Return the time of each host's last sign of life. For a run on one host, the result is empty."""

    def first_seen(self, run: str) -> float | None:
        """Return the time of the run's oldest value."""

    def close(self) -> None:
        """Release files and connections."""


def from_store(store: NumberStore, run: str) -> RunFrames:
    """Return all metrics of a run that the Run page draws."""

    def get(name: str) -> pd.DataFrame:
        return store.series(run, f"stallwatch_{name}", points=_POINTS)

    kind, memory = "", empty()
    for kind in _MEMORY:
        memory = get(f"memory_{kind}_bytes")
        if not memory.empty:
            break
    else:
        kind, memory = "host_rss", highest(get("host_memory_bytes"))
    rank_steps = store.series(run, "stallwatch_rank_step", points=_RANK_POINTS)
    last = store.latest(run, "stallwatch_last_step_timestamp_seconds")
    last_step_at = max((time for time in last.values() if time > 0), default=None)
    return RunFrames(
        steps=highest(get("step")),
        total_steps=max(store.latest(run, "stallwatch_target_steps").values(), default=None),
        loss=_without_plateau(_columns(get("loss")), last_step_at),
        grad_norm=_without_plateau(_columns(get("grad_norm")), last_step_at),
        learning_rate=_without_plateau(_columns(get("learning_rate")), last_step_at),
        step_seconds=durations(
            _of_first_agent(get("step_duration_seconds_sum")),
            _of_first_agent(get("step_duration_seconds_count")),
        ),
        threshold=_of_phase(get("stall_threshold_seconds"), "train"),
        memory=memory if kind == "host_rss" else _without_plateau(_columns(memory), last_step_at),
        memory_kind=kind,
        invalidations=highest(get("trace_cache_invalidations_total")),
        warnings=total(get("warnings_total")),
        rank_steps=_columns(rank_steps),
        hosts=hosts_of(rank_steps),
        seen_at=store.hosts(run),
        phases=phases(_of_first_agent(get("phase"))),
        last_step_at=last_step_at,
    )


def joined(early: RunFrames, late: RunFrames, at: float) -> RunFrames:
    """Return the frames `late`, preceded by the rows of `early` from before `at`, when scraping began."""
    both: dict[str, Any] = {}
    for name in _FRAMES:
        before, after = getattr(early, name), getattr(late, name)
        if name == "memory" and early.memory_kind != late.memory_kind and not after.empty:
            continue
        rows = pd.concat([frame for frame in (before[before["t"] < at], after) if not frame.empty] or [after])
        both[name] = rows.sort_values(["rank", "t"], kind="stable", ignore_index=True)
    for name in _STEP_METRICS:
        both[name] = _without_plateau(both[name], late.last_step_at)
    if late.memory.empty:
        both["memory_kind"] = early.memory_kind
    return replace(late, notes=early.notes, **both)


def phases(frame: pd.DataFrame) -> tuple[tuple[float, str], ...]:
    """Return the start time and name of each phase. In `frame`, a phase's series is 1 during the phase."""
    on = frame[frame["v"] == 1].sort_values("t", kind="stable")
    found: list[tuple[float, str]] = []
    for time, labels in zip(on["t"], on["labels"], strict=True):
        name = str(json.loads(labels).get("stallwatch_phase", "")) if labels else ""
        if name and (not found or found[-1][1] != name):
            found.append((float(time), name))
    return tuple(found)


#: Metrics that each agent counts separately, so their values are added.
_SUMMED = ("log_lines_total", "log_bytes_total", "dropped_records_total")


def fold(metric: str, values: Iterable[float]) -> float:
    """Combine the values that several agents report for one series, as the recording rules and alerts do."""
    return sum(values) if metric.endswith(_SUMMED) else max(values)


def host_of(agent: str) -> str:
    """Return the host from an agent's name, which has the form ``host:port``."""
    return agent.rpartition(":")[0]


def series_order(key: Which | Key) -> tuple[bool, int, tuple[str, ...]]:
    """Return a key that sorts series by rank, then by other labels. Series without a rank are last."""
    rank, *rest = key
    return (rank is None, rank or 0, tuple(rest))


def of_run(times: Any, values: Any, rank: int | None = None) -> pd.DataFrame:
    """Return a frame with the points of one line in a chart, for a rank or for the entire run."""
    ranks = np.full(len(times), -1 if rank is None else rank, "int64")
    known = pd.arrays.IntegerArray(ranks, ranks < 0)
    return pd.DataFrame(
        {"rank": known, "t": np.asarray(times, "float64"), "v": np.asarray(values, "float64")}
    )


def highest(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the progress of the run, which is the highest value of any rank at each time."""
    return _fold(frame, np.fmax.reduce)


def total(frame: pd.DataFrame) -> pd.DataFrame:
    """Return, for each time, the sum of the values of all ranks and labels."""
    return _fold(frame, lambda held: np.nansum(held, axis=0))


def durations(sums: pd.DataFrame, counts: pd.DataFrame) -> pd.DataFrame:
    """Return the mean seconds per step between consecutive times when the step count changed."""
    every, found = _lines(counts), []
    for key, summed in _lines(sums).items():
        if (counted := every.get(key)) is None:
            continue
        times = np.union1d(summed[0], counted[0])
        seconds, steps = _held(summed, times), _held(counted, times)
        # The last point of a plateau repeats the plateau's value, so durations are computed only between
        # points where the step count changed.
        fresh = np.flatnonzero((np.diff(steps, prepend=np.nan) != 0) & ~np.isnan(seconds + steps))
        taken, done = np.diff(seconds[fresh]), np.diff(steps[fresh])
        up = done > 0
        found.append(of_run(times[fresh[1:][up]], taken[up] / done[up], key[0]))
    return pd.concat(found, ignore_index=True) if found else empty()


def limit_ranks(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of the ranks to draw.

    If there are more than `MOST_RANKS`, draw the ranks with the lowest, median, and highest last value.
    """
    if frame["rank"].nunique() <= MOST_RANKS:
        return frame
    last = frame.groupby("rank")["v"].last().sort_values()
    chosen = {last.index[0], last.index[len(last) // 2], last.index[-1]}
    return frame[frame["rank"].isin(chosen)]


def _fold(frame: pd.DataFrame, how: Callable[[Floats], Floats]) -> pd.DataFrame:
    times = np.unique(frame["t"].to_numpy("float64"))
    nothing = np.full(len(times), np.nan)
    held = [_held(line, times) for line in _lines(frame).values()]
    return of_run(times, how(np.array([nothing, *held])))


def hosts_of(frame: pd.DataFrame) -> dict[int, str]:
    """Return, for each rank, the host that last reported it."""
    known = frame[frame["rank"].notna() & frame["agent"].ne("")].sort_values("t", kind="stable")
    last = known.drop_duplicates("rank", keep="last")
    return {int(rank): host_of(agent) for rank, agent in zip(last["rank"], last["agent"], strict=True)}


def _of_first_agent(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of the agent that represents the run, which is the first agent that is not silent."""
    if frame["agent"].nunique() < 2:
        return frame
    last = frame.groupby("agent")["t"].max()
    first: str = last[last >= last.max() - SILENT_SECONDS].index[0]
    return frame.loc[frame["agent"] == first]


def _lines(frame: pd.DataFrame) -> dict[Key, tuple[Floats, Floats]]:
    """Return the times and values of each series, without NaN. Rows of a series must be contiguous."""
    frame = frame[frame["v"].notna()]
    ranks, labels = frame["rank"].to_numpy("int64", na_value=-1), frame["labels"].to_numpy()
    times, values = frame["t"].to_numpy("float64"), frame["v"].to_numpy("float64")
    agents = frame["agent"].to_numpy()
    others = (ranks[1:] != ranks[:-1]) | (labels[1:] != labels[:-1]) | (agents[1:] != agents[:-1])
    edges = [0, *(np.flatnonzero(others) + 1), len(frame)] if len(frame) else []
    return {
        (None if ranks[begin] < 0 else int(ranks[begin]), labels[begin], agents[begin]): (
            times[begin:end],
            values[begin:end],
        )
        for begin, end in pairwise(edges)
    }


def _held(line: tuple[Floats, Floats], times: Floats) -> Floats:
    """Return the last value of a line at or before each of the `times`, or NaN before the first value."""
    values = np.append(line[1], np.nan)
    return values[np.searchsorted(line[0], times, side="right") - 1]


def _columns(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the columns ``rank``, ``t``, and ``v``, sorted by rank and time.

    For values without a rank, keep only the rows of one agent.
    """
    if frame["agent"].nunique() > 1:
        whole = frame["rank"].isna()
        frame = pd.concat([frame[~whole], _of_first_agent(frame[whole])])
        frame = frame.sort_values(["rank", "t"], kind="stable")
    return frame[list(COLUMNS)].reset_index(drop=True)


def _without_plateau(frame: pd.DataFrame, last_step_at: float | None) -> pd.DataFrame:
    """Return the frame without the points after the last step, which only repeat the last measured value."""
    if last_step_at is None or frame.empty:
        return frame
    times, values = frame["t"].to_numpy(), frame["v"].to_numpy()
    late = times > last_step_at + _LATE_SECONDS
    if late.all():
        return frame.drop_duplicates("rank").reset_index(drop=True)
    # The next point of a constant value can be later than the last step. The line then ends at that step.
    ranks = frame["rank"].to_numpy("int64", na_value=-1)
    stays = (values[1:] == values[:-1]) | (np.isnan(values[1:]) & np.isnan(values[:-1]))
    held = late[1:] & ~late[:-1] & (ranks[1:] == ranks[:-1]) & stays
    held &= times[:-1] < last_step_at
    rows = np.sort(np.concatenate([np.flatnonzero(~late), np.flatnonzero(held)]))
    measured = frame.take(rows).reset_index(drop=True)
    again = np.flatnonzero(np.diff(rows, prepend=-1) == 0)
    measured.loc[again, "t"] = last_step_at
    return measured


def _of_phase(frame: pd.DataFrame, phase: str) -> pd.DataFrame:
    of_phase = frame[frame["labels"].str.contains(f'"{phase}"', regex=False)]
    return highest(of_phase if not of_phase.empty else frame)
