"""Simulate runs. Each run is a sequence of signals with the times between them.

The parameters of every run are random: its step time, the variation of its steps, and the durations of its
evaluations, saves, and rollouts. A healthy step takes at most ten minutes, because a longer step ends in the
timeout of a collective. Rollouts, evaluations, and logging intervals can take longer.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

What = Literal["step", "phase", "gone", "log-step", "log-line"]
Doing = Literal["step", "load", "compile", "evaluate", "metrics", "save", "rollout", "sync"]
LONGEST_STEP = 600.0
EVALUATES, SAVES = "***** Running Evaluation *****", "Saving model checkpoint to out/checkpoint-1"


@dataclass(frozen=True)
class Report:
    """One signal of a run. The signal comes `wait` seconds after the previous signal."""

    wait: float
    what: What
    value: int | str
    doing: Doing = "step"  #: what the stacks of the ranks show during the wait


@dataclass(frozen=True)
class Run:
    """One run: its kind, its duration, and all its signals."""

    kind: str
    hours: float
    ranks: int
    reports: Iterator[Report]
    hooked: bool = True  #: True if the ranks have a probe, and their stacks can be sampled


Steps = Callable[[], float]  # returns the duration of the next step in seconds


@dataclass
class Course:
    """The parameters that all parts of a run share."""

    draw: random.Random
    hooked: bool = True
    step: int = 0
    every: int = 1  # number of steps between two logged lines

    def between(self, low: float, high: float) -> float:
        """Return a log-uniform random number between `low` and `high`."""
        return low * (high / low) ** self.draw.random()

    def begin(self, low: float = 20.0, high: float = 2400.0) -> Iterator[Report]:
        """Yield the signals from the start of a run.

        Imports come before the first signal of the probe. Loading and a first step with compilation follow.
        """
        yield Report(self.between(5, 60), "phase" if self.hooked else "log-line", "init", "load")
        yield Report(self.between(low, high), "log-line", "loaded", "load")
        yield from self.steps(1, lambda: self.between(1, LONGEST_STEP), "compile")

    def steps(self, count: int, seconds: Steps, doing: Doing = "step") -> Iterator[Report]:
        """Yield the signals of `count` training steps."""
        waited = 0.0
        for _ in range(count):
            self.step += 1
            waited += min(seconds(), LONGEST_STEP)
            if self.hooked or self.step % self.every == 0:
                yield Report(waited, "step" if self.hooked else "log-step", self.step, doing)
                waited = 0.0

    def evaluate(self, batches: int, seconds: Steps, after: float) -> Iterator[Report]:
        """Yield the signals of an evaluation: batches, which a probe sees as activity, and then metrics."""
        if self.hooked:
            yield Report(0.1, "phase", "eval")
            for _ in range(batches):
                yield Report(min(seconds(), LONGEST_STEP), "phase", "eval", "evaluate")
            yield Report(after, "phase", "train", "metrics")
        else:
            yield Report(0.1, "log-line", EVALUATES)
            waited = sum(min(seconds(), LONGEST_STEP) for _ in range(batches))
            yield Report(waited + after, "log-line", "")

    def save(self, seconds: float) -> Iterator[Report]:
        """Yield the signals of saving a checkpoint."""
        if self.hooked:
            yield Report(0.1, "phase", "save")
            yield Report(seconds, "phase", "train", "save")
        else:
            yield Report(0.1, "log-line", SAVES)
            yield Report(seconds, "log-line", "")


def trained(
    course: Course, seconds: Steps, longest_start: float = 2400.0, longest_metrics: float = 180.0
) -> Iterator[Report]:
    """Yield the signals of an endless run that consists of steps, evaluations, and checkpoints."""
    draw = course.draw
    yield from course.begin(high=longest_start)
    part = draw.randint(20, 500)
    batch, batches, after = course.between(0.2, 20), draw.randint(5, 60), course.between(0.1, longest_metrics)
    saving = course.between(2, 600)
    while True:
        yield from course.steps(part, seconds)
        if draw.random() < 0.7:
            yield from course.evaluate(batches, lambda: batch * draw.lognormvariate(0, 0.3), after)
        if draw.random() < 0.7:
            yield from course.save(saving * draw.lognormvariate(0, 0.3))


# ---- variation of steps


def even(course: Course) -> Steps:
    """Return a function that draws almost equal step times, as in synchronous pre-training."""
    usual, spread = course.between(3, 120), course.between(0.01, 0.1)
    return lambda: usual * course.draw.lognormvariate(0, spread)


def lognormal(course: Course) -> Steps:
    """Return a function that draws log-normal step times, as with sequences of different lengths."""
    usual, spread = course.between(3, 40), course.between(0.2, 1.0)
    return lambda: usual * course.draw.lognormvariate(0, spread)


def pareto(course: Course) -> Steps:
    """Return a function that draws Pareto step times, as with a shared file system or network."""
    least, index = course.between(2, 20), course.draw.uniform(1.5, 5)
    return lambda: least * course.draw.paretovariate(index)


def weibull(course: Course) -> Steps:
    """Return a function that draws Weibull step times, which also have a heavy tail."""
    usual, shape = course.between(3, 40), course.draw.uniform(0.5, 1.0)
    return lambda: 0.2 * usual + course.draw.weibullvariate(usual, shape)


def stragglers(course: Course) -> Steps:
    """Return a function that draws almost equal step times, except for steps that wait for a slow rank."""
    usual, share, delay = course.between(3, 60), course.between(0.02, 0.1), course.between(1, 60)

    def seconds() -> float:
        late = course.draw.expovariate(1 / delay) if course.draw.random() < share else 0.0
        return usual * course.draw.lognormvariate(0, 0.05) + late

    return seconds


def drifting(course: Course) -> Steps:
    """Return a function that draws step times that slowly become three times as long and then short."""
    usual, length = course.between(3, 60), course.draw.randint(200, 2000)

    def seconds() -> float:
        return usual * (1 + 2 * (course.step % length) / length) * course.draw.lognormvariate(0, 0.1)

    return seconds


def _trains(steps: Callable[[Course], Steps]) -> Callable[[Course], Iterator[Report]]:
    return lambda course: trained(course, steps(course))


# ---- other kinds of runs


def reinforced(course: Course) -> Iterator[Report]:
    """Yield the signals of rollouts of a minute to over an hour, each followed by a weight sync and steps."""
    draw, usual, spread = course.draw, course.between(60, 2400), course.draw.uniform(0.05, 0.5)
    updates, step = draw.randint(1, 8), course.between(2, 60)
    yield from course.begin()
    while True:
        yield Report(0.5, "phase", "rollout")
        yield Report(min(usual * draw.lognormvariate(0, spread), 5400), "phase", "weight-sync", "rollout")
        yield Report(draw.uniform(1, 30), "phase", "train", "sync")
        yield from course.steps(updates, lambda: step * draw.lognormvariate(0, 0.1))


def restarted(course: Course) -> Iterator[Report]:
    """Yield the signals of a run that loses its ranks and restarts them from the last checkpoint."""
    draw, seconds = course.draw, even(course)
    while True:
        yield from course.begin(20, 2400)
        for _ in range(draw.randint(1, 5)):
            yield from course.steps(draw.randint(20, 300), seconds)
            saved = course.step
            yield from course.save(course.between(2, 300))
        yield from course.steps(draw.randint(1, 40), seconds)
        course.step = saved
        yield Report(course.between(1, 3), "gone", "")  # the launcher restarts the ranks later
        yield Report(course.between(1, 60), "log-line", "", "load")


def compiled(course: Course) -> Iterator[Report]:
    """Yield the signals of a run whose input shapes change. Each new shape takes minutes to compile."""
    draw, seconds = course.draw, even(course)
    yield from course.begin()
    while True:
        yield from course.steps(draw.randint(1, 200), seconds)
        yield Report(0.1, "phase", "init")
        yield Report(course.between(5, 600), "phase", "train", "compile")


def logged_every_half_hour(course: Course) -> Iterator[Report]:
    """Yield the signals of a healthy run that logs one line every 33 minutes."""
    course.every = course.draw.randint(20, 200)
    step = 1980.0 / course.every
    yield from course.begin(20, 600)
    yield from course.steps(1 << 60, lambda: step * course.draw.lognormvariate(0, 0.1))


def logged_rollouts(course: Course) -> Iterator[Report]:
    """Yield the signals of a reinforcement-learning run whose log contains only the steps."""
    usual, spread = course.between(60, 2400), course.draw.uniform(0.05, 0.4)
    yield from course.begin(20, 600)
    while True:
        course.step += 1
        seconds = min(usual * course.draw.lognormvariate(0, spread), 5400)
        yield Report(seconds, "log-step", course.step)


def logged(course: Course) -> Iterator[Report]:
    """Yield the signals of a trainer's log, which shows steps, evaluations, and checkpoints."""
    course.every = course.draw.choice((1, 1, 5, 10, 25))
    steps = course.draw.choice((even, lognormal, pareto, weibull))
    return trained(course, steps(course), longest_start=1200.0)


def unreported(course: Course) -> Iterator[Report]:
    """Yield the signals of a run whose log does not announce evaluations."""
    seconds, pause, every = even(course), course.between(60, 1200), course.draw.randint(50, 500)
    yield from course.begin()
    while True:
        yield from course.steps(every, seconds)
        yield Report(pause * course.draw.lognormvariate(0, 0.1), "log-line", "")


KINDS: dict[str, Callable[[Course], Iterator[Report]]] = {
    "even steps": _trains(even),
    "lognormal steps": _trains(lognormal),
    "Pareto steps": _trains(pareto),
    "Weibull steps": _trains(weibull),
    "drifting steps": _trains(drifting),
    "rollouts": reinforced,
    "restarts": restarted,
    "compilations": compiled,
    "log only": logged,
    "log only, rollouts": logged_rollouts,
    "log only, each 33 minutes": logged_every_half_hour,
}

#: Kinds of runs with pauses that differ from every earlier part of the run, and that exceed the threshold
#: for a wait that occurs for the first time. A watch that reports hangs within a minute or two reports
#: these pauses as stalls, and then reports their end.
UNFORESEEN: dict[str, Callable[[Course], Iterator[Report]]] = {
    "stragglers": _trains(stragglers),
    "evaluations that nothing announces": unreported,
    "metrics of up to 15 minutes": lambda course: trained(course, even(course), longest_metrics=900.0),
}


def simulate(kind: str, draw: random.Random) -> Run:
    """Simulate a run of this kind, either with a probe or with only a log."""
    course = Course(draw, hooked=not kind.startswith(("log only", "evaluations")))
    hours, ranks = course.between(3, 100), draw.choice((1, 1, 1, 1, 2, 8))
    return Run(kind, hours, ranks, {**KINDS, **UNFORESEEN}[kind](course), course.hooked)
