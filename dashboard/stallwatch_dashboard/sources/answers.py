"""What a Prometheus answers, as the pages want it. Pure."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from stallwatch_dashboard.sources.glances import Which
from stallwatch_dashboard.sources.promql import PREFIX
from stallwatch_dashboard.sources.pulses import Pulse, pulse_of
from stallwatch_dashboard.sources.ranges import Points

Every = dict[str, dict[str, dict[Which, float]]]  #: newest values by run and metric
_OWN = ("__name__", "run", "rank", "instance", "job")


def which(labels: Mapping[str, str]) -> Which:
    """Rank and remaining labels, written as the embedded store writes them."""
    rank = labels.get("rank", "")
    rest = {name: text for name, text in labels.items() if name not in _OWN}
    written = json.dumps(rest, sort_keys=True, ensure_ascii=False) if rest else ""
    return (int(rank) if rank.isdecimal() else None, written)


def frame(told: Mapping[Which, list[Points]]) -> pd.DataFrame:
    """By rank, what has none last; then by labels and time, of two at one moment the last."""
    order = sorted(told, key=lambda one: (one[0] is None, one[0] or 0, one[1]))
    lines = []
    for one in order:
        times, values = (np.concatenate([part[n] for part in told[one]]) for n in (0, 1))
        by_time = np.argsort(times, kind="stable")
        by_time = by_time[np.diff(times[by_time], append=np.inf) > 0]  # now may be one of the moments
        lines.append((times[by_time], values[by_time]))
    many = [len(times) for times, _ in lines]
    ranks = np.repeat([-1 if rank is None else rank for rank, _ in order], many).astype("int64")
    labels = np.repeat(np.array([text for _, text in order], "object"), many)
    times, values = (np.concatenate([np.empty(0), *(line[n] for line in lines)]) for n in (0, 1))
    known = pd.arrays.IntegerArray(ranks, ranks < 0)
    return pd.DataFrame({"rank": known, "labels": labels, "t": times, "v": values})


def by_metric(told: list[Any]) -> Every:
    """The answer at one moment by run and metric."""
    found: Every = defaultdict(lambda: defaultdict(dict))
    for one in told:
        labels = one["metric"]
        name = labels["__name__"].removeprefix(PREFIX)
        found[labels.get("run", "")][name][which(labels)] = float(one["value"][1])
    return found


def pulses(
    losses: dict[str, dict[float, float]],
    sums: dict[str, dict[float, float]],
    counts: dict[str, dict[float, float]],
) -> dict[str, Pulse]:
    """Of each run, from its losses and the seconds and numbers of its steps, by their times."""
    found = {}
    for run in losses.keys() | sums.keys():
        counted = counts.get(run, {})
        steps = [(seconds, counted[at]) for at, seconds in sums.get(run, {}).items() if at in counted]
        times = [*losses.get(run, {}), *sums.get(run, {})]
        found[run] = pulse_of(losses.get(run, {}).values(), steps, min(times, default=None))
    return found
