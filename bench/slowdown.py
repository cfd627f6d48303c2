"""In simulated series, measure the slowdown test's false alarms and its delay for real slowdowns.

The test runs after every step of each series, as in live use. Usage: `python bench/slowdown.py [SERIES]`
"""

from __future__ import annotations

import argparse
import math
import random
from collections.abc import Iterator
from statistics import median

from stallwatch_rules.judgements.step_time import slowdown

STEPS = 400
CHANGED = 100  #: number of normal steps; all later steps take twice as long
SPREADS = (0.1, 0.4, 0.8, 1.0)  #: standard deviations of the logarithms of step times


def series(
    draw: random.Random, spread: float, alike: float = 0.0, slower_at: int | None = None
) -> list[float]:
    """Return log-normal step times. ``alike`` is the correlation between a step and the step before it."""
    paces, last = [], draw.gauss(0, 1)
    for step in range(STEPS):
        last = alike * last + math.sqrt(1 - alike * alike) * draw.gauss(0, 1)
        factor = 2.0 if slower_at is not None and step >= slower_at else 1.0
        paces.append(factor * math.exp(spread * last))
    return paces


def ramp(draw: random.Random, spread: float) -> list[float]:
    """Return step times that gradually become four times as long, as in a curriculum."""
    return [pace * (1 + 3 * step / STEPS) for step, pace in enumerate(series(draw, spread))]


def alarms(paces: list[float]) -> Iterator[int]:
    """Yield each number of steps after which the test finds that the run is slow."""
    return (seen for seen in range(1, len(paces) + 1) if slowdown(paces[:seen]) is not None)


def main() -> None:
    """Print the tables of false alarms and of delays."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("series", type=int, nargs="?", default=100)
    count = parser.parse_args().series
    draw = random.Random(17)
    print(f"{count} series of {STEPS} steps each, judged after every step\n")
    print("spread of logs |  false alarms        | steps until doubled times are detected: median, p90")
    for spread in SPREADS:
        false = sum(any(alarms(series(draw, spread))) for _ in range(count))
        found = [
            next(alarms(series(draw, spread, slower_at=CHANGED)), STEPS) for _ in range(max(20, count // 5))
        ]
        delays = sorted(at - CHANGED for at in found)
        print(f"{spread:14} | {false / count:20.1%} | {median(delays):5g}, {delays[len(delays) * 9 // 10]}")
    print("\ncorrelation of neighboring steps, or a curriculum | false alarms")
    for alike in (0.5, 0.9):
        for spread in (0.4, 0.8):
            false = sum(any(alarms(series(draw, spread, alike))) for _ in range(count // 2))
            print(f"{alike}, spread {spread} | {false / (count // 2):.1%}")
    false = sum(any(alarms(ramp(draw, 0.1))) for _ in range(count // 2))
    print(f"steps that become four times as long, spread 0.1 | {false / (count // 2):.1%}")


if __name__ == "__main__":
    main()
