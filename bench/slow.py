"""Measure how quickly Stallwatch finds a slow host and how often it reports a healthy host as slow.

    python bench/slow.py [--hosts 128] [--trials 300] [--hours 1000] [--seed 1] [--resume FILE.jsonl]

A step takes 1 s. Each host needs 0.7 s of this time for its own work, multiplied by noise. The noise is
independent Gaussian, independent log-normal, or Gaussian with an autocorrelation of 0.7 from step to step
(AR(1)). σ is the noise of one host in one step.

* Slowdowns: after 64 steps, the work of one host takes 10% longer. All results come from ``SlowHosts``
  itself. Next to each result, the benchmark shows the number of steps that any test needs for the same
  certainty (``fewest``). Even a test that knows the level of the noise and the time of the slowdown needs
  at least this many steps. No test can average out lasting noise.
* False alarms: ``Twin`` applies the test of ``SlowHosts`` to hours of healthy runs, with many runs in
  parallel (numpy). First, the benchmark compares the two classes step by step on runs with slow hosts, where
  a difference is an error. Of all alarms of a run in 640 steps, only one counts. ``SlowHosts`` also ignores
  hosts that cost less than 1% of the throughput. ``Twin`` does not ignore these hosts, so it raises at
  least as many alarms.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from stallwatch_rules.judgements import slow_hosts
from stallwatch_rules.judgements.slow_hosts import (
    FIRST,
    LEAST,
    WINDOWS,
    Comparison,
    RankStep,
    SlowHosts,
    Z,
    required_positive_steps,
)

SIGMAS = (0.01, 0.02, 0.03, 0.05, 0.10, 0.20, 0.50)
NOISES = ("gaussian", "log-normal", "AR(1)")
CORRELATION = 0.7  # autocorrelation of the AR(1) noise
WARM = 64  # number of healthy steps before the slowdown
SLOWER = 0.10
MOST = 2000  # maximum number of steps until a slowdown is found
OWN_SECONDS, STEP_SECONDS = 0.7, 1.0
CHUNK_HOURS = 100.0  # number of hours that are simulated and stored at a time
_99 = 2.326  # 99% quantile of the normal distribution, in standard errors
_APART = 640  # number of steps for which further alarms of the same run are ignored

Array = Any  # numpy array of runs × hosts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--hosts", type=int, default=128)
    parser.add_argument(
        "--trials", type=int, default=300, help="number of slowdowns per noise and σ up to 3%%"
    )
    parser.add_argument("--hours", type=float, default=1000.0, help="number of healthy hours per noise and σ")
    parser.add_argument("--runs", type=int, default=64, help="number of runs that the twin follows at once")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--resume", type=Path, help="store results in this file, and continue from them")
    given = parser.parse_args()
    kept = Kept(given.resume, [given.hosts, given.runs, given.seed])
    began = time.monotonic()
    print(f"{given.hosts} hosts, seed {given.seed}")
    print("slowdowns of 10%: steps until detection (share within 10 steps)")
    for noise in NOISES:
        for sigma in SIGMAS:
            trials = given.trials if sigma <= 0.03 else max(1, given.trials // 15)
            found = kept(
                ["slow-downs", noise, sigma, trials],
                partial(slow_downs, noise, sigma, given.hosts, trials, given.seed),
            )
            print(line_of(noise, sigma, found), flush=True)
    print(f"twin and product agree on {compare_twin(given.hosts, given.seed):,} judgments")
    print("false alarms")
    for noise in NOISES:
        for sigma in SIGMAS:
            alarms = hours = 0.0
            for chunk in range(math.ceil(given.hours / CHUNK_HOURS)):
                least = min(CHUNK_HOURS, given.hours - chunk * CHUNK_HOURS)
                more = kept(
                    ["false alarms", noise, sigma, least, chunk],
                    partial(false_alarms, noise, sigma, given.hosts, least, given.runs, given.seed + chunk),
                )
                alarms, hours = alarms + more[0], hours + more[1]
            rate = 1000 * alarms / hours
            print(
                f"  {noise:10} σ {sigma:4.0%}  {alarms:3.0f} in {hours:,.0f} h: {rate:.2f} per 1,000 h",
                flush=True,
            )
    print(f"{time.monotonic() - began:.0f} s")


class Kept:
    """The results of the simulations. If a path is given, the file at the path stores them as JSON lines."""

    def __init__(self, path: Path | None, given: list[int]) -> None:
        self._path, self._given = path, given
        lines = path.read_text().splitlines() if path is not None and path.exists() else []
        self._known = {json.dumps(key): result for key, result in map(json.loads, lines)}

    def __call__(self, what: list[Any], simulate: Callable[[], Any]) -> Any:
        key = [*self._given, *what]
        if json.dumps(key) in self._known:
            return self._known[json.dumps(key)]
        result = simulate()
        if self._path is not None:
            with self._path.open("a") as file:
                file.write(json.dumps([key, result]) + "\n")
        return result


def fewest(noise: str, sigma: float, errors: float = 0.0) -> int:
    """Return the number of steps that any test needs for a certainty of `Z + errors` standard errors.

    A test can compare each step with the duration that the previous step predicts. At the first slow step,
    the difference shows the whole slowdown. At each later step, the difference shows only the part that
    the correlation leaves.
    """
    correlation = CORRELATION if noise == "AR(1)" else 0.0
    wanted = ((Z + errors) * sigma / math.log1p(SLOWER)) ** 2 * (1 - correlation**2)
    return max(1, math.ceil(1 + (wanted - 1) / (1 - correlation) ** 2))


def line_of(noise: str, sigma: float, found: list[int | None]) -> str:
    """Return one line of the slowdown table."""
    steps = sorted(math.inf if item is None else item for item in found)
    soon = sum(step <= 10 for step in steps) / len(steps)
    middle, last = statistics.median(steps), steps[math.ceil(0.99 * len(steps)) - 1]
    shown = [f"{item:,.0f}" if item < math.inf else f"> {MOST:,}" for item in (middle, last)]
    least = f"{fewest(noise, sigma):,} and {fewest(noise, sigma, _99):,}"
    return (
        f"  {noise:10} σ {sigma:4.0%}  median {shown[0]:>7}  p99  {shown[1]:>7}  ({soon:.1%} of {len(steps)};"
        f" any test: {least})"
    )


def noise_of(noise: str, sigma: float, shape: tuple[int, ...], draw: Any) -> Iterator[Array]:
    """Yield, for each step, the factors by which the noise changes the durations of the hosts' own work."""
    correlation = CORRELATION if noise == "AR(1)" else 0.0
    state = draw.standard_normal(shape)
    while True:
        state = correlation * state + math.sqrt(1 - correlation**2) * draw.standard_normal(shape)
        yield np.exp(sigma * state) if noise == "log-normal" else np.maximum(0.02, 1 + sigma * state)


# ---- slowdowns, found by Stallwatch


def slow_downs(noise: str, sigma: float, hosts: int, trials: int, seed: int) -> list[int | None]:
    """Return the number of steps after which each slowdown was found.

    The number is ``None`` if no host or a healthy host was blamed.
    """
    draw = np.random.default_rng([seed, NOISES.index(noise), round(1000 * sigma)])
    return [
        slow_down(noise_of(noise, sigma, (hosts,), draw), int(draw.integers(hosts))) for _ in range(trials)
    ]


def slow_down(factors: Iterator[Array], guilty: int) -> int | None:
    """Return the number of steps until the guilty host was found, or ``None`` if it was not found."""
    watched = SlowHosts()
    for step in range(WARM + MOST):
        busy = OWN_SECONDS * next(factors)
        if step >= WARM:
            busy[guilty] *= 1 + SLOWER
        whole = STEP_SECONDS - OWN_SECONDS + float(busy.max())
        for rank, seconds in enumerate(busy.tolist()):
            watched.see(f"n{rank}", rank, step, RankStep(seconds, whole))
        if watched.slow is not None:
            return step - WARM + 1 if watched.slow.host == f"n{guilty}" and step >= WARM else None
    return None


# ---- false alarms, counted by the twin


class Twin:
    """A version of ``Comparison`` for many runs at once.

    In each step, it returns the runs that raise an alarm.
    """

    def __init__(self, runs: int, hosts: int) -> None:
        self.shape = runs, hosts
        self.memory = max(slow_hosts._MEMORY, slow_hosts._VALUES // hosts)
        self.steps = 0
        self.sums = np.zeros((WINDOWS[-1] + 1, runs, hosts))
        self.positive = np.zeros((WINDOWS[-1] + 1, runs, hosts), dtype=np.int32)
        self.noise = np.zeros((runs, hosts))
        self.last: Array = None
        self.before: Array = None
        self.usual: list[Array] = []
        self.differences = 0
        self.square, self.product, self.quick = np.zeros(runs), np.zeros(runs), np.zeros(runs)

    def see(self, values: Array) -> Array:
        deviation = values - others_median(values)
        self._learn(deviation)
        clip = np.full(self.shape[0], slow_hosts._LEAST_CLIP)
        if self.differences:
            correlated = self._correlation()
            clip = np.maximum(clip, slow_hosts._CLIP * np.sqrt(self._larger() / (2 * (1 - correlated))))
        size = len(self.sums)
        here, there = self.steps % size, (self.steps + 1) % size
        clipped = np.clip(deviation, -clip[:, None], clip[:, None])
        np.add(self.sums[here], clipped, out=self.sums[there])
        np.add(self.positive[here], deviation > 0, out=self.positive[there])
        self.steps += 1
        return self._judge(deviation) if self.steps >= FIRST else np.zeros(self.shape[0], dtype=bool)

    def _learn(self, deviation: Array) -> None:
        if self.last is not None:
            differences = deviation - self.last
            squares = differences**2
            self.usual = [*self.usual, middle(squares) / slow_hosts._MEDIAN_TO_SD**2][-slow_hosts._USUAL_OF :]
            most = slow_hosts._CLIP * np.sqrt(np.maximum(self.square, np.median(self.usual, axis=0)))
            clipped = np.clip(differences, -most[:, None], most[:, None])
            self.differences += 1
            mean = (clipped**2).mean(axis=1)
            quick = max(slow_hosts._LEAST_QUICK, slow_hosts._QUICK // self.shape[1])
            self.square += (mean - self.square) / min(self.differences, self.memory)
            self.quick += (mean - self.quick) / min(self.differences, quick, slow_hosts._MEMORY)
            if self.before is not None:
                mean = (clipped * self.before).mean(axis=1)
                self.product += (mean - self.product) / min(max(1, self.differences - 1), self.memory)
            self.before = clipped
            most = slow_hosts._CLIP**2 * np.maximum(self.square[:, None], self.noise)
            self.noise += (np.minimum(squares, most) - self.noise) / min(self.steps, slow_hosts._OWN_MEMORY)
        self.last = deviation

    def _samples(self) -> float:
        return max(1.0, (self.shape[1] - 1) * min(self.differences, 2 * self.memory - 1) / 2)

    def _correlation(self) -> Array:
        given = 1 + 2 * self.product / np.maximum(self.square, 1e-300) + 3 / math.sqrt(self._samples())
        return np.clip(given, 0.0, slow_hosts._MOST_CORRELATED)

    def _larger(self) -> Array:
        return np.maximum(self.square, self.quick)

    def _judge(self, deviation: Array) -> Array:
        found = np.zeros(self.shape[0], dtype=bool)
        now = self.steps % len(self.sums)
        for steps in WINDOWS:
            if steps > self.steps:
                break
            if self.steps % max(1, steps // 32):
                continue
            then = (self.steps - steps) % len(self.sums)
            mean = (self.sums[now] - self.sums[then]) / steps
            runs, hosts = np.nonzero((mean >= LEAST) & (deviation > 0))
            if not len(runs):
                continue
            score = self._score(mean[runs, hosts], runs, hosts, steps)
            positive = self.positive[now, runs, hosts] - self.positive[then, runs, hosts]
            found[runs[(score >= Z) & (positive >= required_positive_steps(steps))]] = True
        return found

    def _score(self, mean: Array, runs: Array, hosts: Array, steps: int) -> Array:
        seen = min(self.steps - 1, slow_hosts._OWN_MEMORY)
        noise = self.noise[runs, hosts] * max(0.0, 1 - 3 / math.sqrt(seen))
        correlated = self._correlation()[runs]
        rest = 1 - correlated
        spread = (1 + correlated) / rest - 2 * correlated * (1 - correlated**steps) / (steps * rest**2)
        error = np.sqrt(np.maximum(self._larger()[runs], noise) / (2 * rest) * spread / steps)
        return np.sqrt(self._samples() * np.log1p((mean / error) ** 2 / self._samples()))


def others_median(values: Array) -> Array:
    """For each value, return the median of the other values in the same run."""
    others = values.shape[1] - 1
    half, odd = divmod(others, 2)
    wanted = [half - 1, half, half + 1] if half else [half, half + 1]
    ordered = np.partition(values, wanted, axis=1)
    upper = np.where(values > ordered[:, half, None], ordered[:, half, None], ordered[:, half + 1, None])
    if odd:
        return upper
    below = ordered[:, half - 1, None]
    return (upper + np.where(values > below, below, ordered[:, half, None])) / 2


def middle(values: Array) -> Array:
    """Return the median of each run."""
    return np.median(values, axis=1)


def compare_twin(hosts: int, seed: int, runs: int = 4, steps: int = 300) -> int:
    """Apply `Twin` and ``Comparison`` to the same runs and count the equal results.

    Some of the runs have a slow host. Raise `AssertionError` at the first difference.
    """
    draw = np.random.default_rng([seed, 99])
    agreed = 0
    for noise, sigma in (("gaussian", 0.03), ("log-normal", 0.2), ("AR(1)", 0.05)):
        factors = noise_of(noise, sigma, (runs, hosts), draw)
        twin, products = Twin(runs, hosts), [Comparison[int]() for _ in range(runs)]
        for step in range(steps):
            values = next(factors)
            if step >= WARM:
                values[::2, 0] *= 1 + 4 * sigma
            values = np.log(values)
            by_twin = twin.see(values).tolist()
            for run, product in enumerate(products):
                row = slow_hosts.deviations(dict(enumerate(values[run].tolist())))
                if (product.see(row) is not None) != by_twin[run]:
                    raise AssertionError(f"{noise}, σ {sigma}: run {run} differs in step {step}")
                agreed += 1
    return agreed


def false_alarms(
    noise: str,
    sigma: float,
    hosts: int,
    hours: float,
    runs: int,
    seed: int,
    note: Callable[[int], None] = lambda _: None,
) -> tuple[int, float]:
    """Return the number of alarms in healthy runs and the number of simulated hours."""
    draw = np.random.default_rng([seed, 7, NOISES.index(noise), round(1000 * sigma)])
    twin, factors = Twin(runs, hosts), noise_of(noise, sigma, (runs, hosts), draw)
    alarms, last = 0, np.full(runs, -_APART)
    steps = math.ceil(hours * 3600 / runs)
    for step in range(steps):
        for run in np.nonzero(twin.see(np.log(next(factors))))[0]:
            if step - last[run] >= _APART:
                alarms += 1
                note(step)
            last[run] = step
    return alarms, steps * runs / 3600


if __name__ == "__main__":
    main()
