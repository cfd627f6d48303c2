"""Use a table of conditions on printed metrics to assess runs that fail without an error message.

Each assessment is a list of conditions that must all hold, each on one metric. The conditions compare a run
with itself and require many values in a row. Therefore, the following are not failures: a spike that
disappears, the warm-up or the last steps of a schedule, and a solved task.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby
from statistics import median
from typing import NamedTuple

from stallwatch_rules.judgements.facts import Judgement, RunFacts
from stallwatch_rules.messages import message
from stallwatch_rules.pages.page import Tag

COLLAPSE: Tag = "policy-collapsed"
EQUAL_REWARDS: Tag = "rewards-equal"
KL_EXPLOSION: Tag = "kl-exploded"
RATE_FROZEN: Tag = "rate-frozen"
EVALUATION_FROZEN: Tag = "evaluation-same"

Params = Mapping[str, str | int]
Metrics = Mapping[str, Sequence[float]]  #: the values of each metric, oldest first
#: Test of a run's metrics. It returns the parameters of the message, or ``None`` if the condition is not met.
Condition = Callable[[Metrics], Params | None]

WINDOW = 20  #: minimum number of values in a row that rule out a coincidence
SOME = 60  #: number of values after which a run's usual level is known
ALWAYS = 40  #: minimum number of equal evaluation results with fewer than four digits that show a failure
#: Minimum number of rewards that equal the same penalty from the start, if this penalty is not the best
#: possible reward. A constant reward of 0 can be the best possible reward.
NEVER_EARNED = 200
FLOOR = 0.05  #: a metric is at its floor if it exceeds its minimum by at most this share of its range
GONE = 0.05  #: a metric below this share of its first values has vanished
OUTLIERS = 20  #: at most one in this number of rewards is an outlier above the level that the run reaches
NEAR_BEST = 0.1  #: a reward is at its best if it is below the best by at most this share of its range
KL_TIMES, KL_LEAST = 20.0, 50.0  #: minimum ratio of an exploded KL to earlier values, and its minimum value
KL_STAYED, KL_RAMP = 10, 20  #: numbers of high values of an exploded KL, and of rising values before them
EXACT = 3  #: minimum number of printed digits that show that a rate is not rounded to 0
NOT_FALLING = 0.97  #: a loss above this share of the first losses does not fall
EVALUATIONS = 5  #: minimum number of equal evaluation results with five digits that show a failure
EVALUATIONS_ROUNDED = 8  #: minimum number of equal evaluation results with four digits that show a failure


class Quality(NamedTuple):
    """A conclusion about a run that follows from conditions on its metrics."""

    tag: Tag  #: the tag of the rule
    note: str  #: key of the message, in the area ``diagnosis``
    conditions: tuple[Condition, ...]
    under_way: bool = False  #: True if the conclusion applies only to runs that are far from their end


def never_varied(metric: str, value: float, count: int, metrics: Metrics) -> Params | None:
    """Check whether a metric always had this value."""
    values = metrics.get(metric, ())
    return {"count": len(values)} if len(values) >= count and set(values) == {value} else None


def ends_at_zero(metric: str, count: int, metrics: Metrics) -> Params | None:
    """Check whether the last values are 0, although earlier values were printed with enough digits."""
    values = metrics.get(metric, ())
    zeros = _at_end([value == 0 for value in values])
    exact = any(_digits(value) >= EXACT for value in values[: len(values) - zeros][-count:])
    return {"count": zeros} if zeros >= count and exact else None


def stays_zero(metric: str, count: int, metrics: Metrics) -> Params | None:
    """Check whether the last values are 0.

    The number of zeros at the end must be at least `count` and at least twice the length of any earlier
    series of zeros.
    """
    zeros = [value == 0 for value in metrics.get(metric, ())]
    row = _at_end(zeros)
    before = (sum(1 for _ in group) for is_zero, group in groupby(zeros[: len(zeros) - row]) if is_zero)
    return {"count": row} if row >= max(count, 2 * max(before, default=0)) else None


def _at_end(same: Sequence[bool]) -> int:
    """Return the number of consecutive true values at the end."""
    return next((at for at, value in enumerate(reversed(same)) if not value), len(same))


def _digits(value: float) -> int:
    """Return the number of significant digits of a value."""
    return len(f"{value:.12e}".partition("e")[0].replace(".", "").lstrip("-").rstrip("0"))


def _finite(metrics: Metrics, metric: str) -> list[float]:
    return [value for value in metrics.get(metric, ()) if math.isfinite(value)]


def does_not_fall(metric: str, metrics: Metrics) -> Params | None:
    """Check whether the last third of the values is not clearly lower than the first third."""
    values = _finite(metrics, metric)
    third = len(values) // 3
    return {} if third and median(values[-third:]) > NOT_FALLING * median(values[:third]) else None


def not_a_number(metric: str, count: int, metrics: Metrics, *, at_first: bool = True) -> Params | None:
    """Check whether at least the last `count` values are all NaN or infinite.

    If `at_first` is false, a metric that was never finite counts as not available in the run.
    """
    values = metrics.get(metric, ())
    bad = _at_end([not math.isfinite(value) for value in values])
    return {"count": bad} if bad >= count and (at_first or bad < len(values)) else None


def below_best(metric: str, metrics: Metrics) -> Params | None:
    """Check whether a reward is below the best reward of the run.

    If the reward is not below the best reward, the task might be solved, and the run has nothing left to
    learn. The best reward is the highest value in the run, excluding outliers, that differs from the current
    reward. A reward that never changed counts as the best, unless it is a penalty.
    """
    values = _finite(metrics, metric)
    if len(values) < WINDOW:
        return None
    recent, worst = median(values[-WINDOW:]), min(values)
    others = sorted(value for value in values if value != recent)
    best = others[-1 - len(others) // OUTLIERS] if others else recent
    never = recent < 0 and len(values) >= NEVER_EARNED
    below = recent < best - NEAR_BEST * (best - worst) if others else never
    return {"reward": f"{recent:.4g}"} if below else None


def fell_to_floor(metric: str, metrics: Metrics) -> Params | None:
    """Check whether a metric fell from a much higher level and stays near its minimum."""
    values = _finite(metrics, metric)
    if len(values) < SOME:
        return None
    before, last = values[:-WINDOW], values[-WINDOW:]
    best = max(median(before[at : at + WINDOW]) for at in range(len(before) - WINDOW + 1))
    floor = min(values)
    if best <= floor or max(last) > floor + FLOOR * (best - floor):
        return None
    return {"best": f"{best:.4g}", "reward": f"{median(last):.4g}", "count": WINDOW}


def fell_to_fraction(names: Sequence[str], metrics: Metrics) -> Params | None:
    """Check whether one of these metrics fell to a small share of its first values."""
    for name in names:
        values = _finite(metrics, name)
        if len(values) < SOME:
            continue
        first, now = median(values[: len(values) // 3]), max(map(abs, values[-WINDOW:]))
        if first > 0 and now <= GONE * first:
            return {"metric": name, "first": f"{first:.4g}", "value": f"{now:.4g}"}
    return None


def rose_sharply(metric: str, metrics: Metrics) -> Params | None:
    """Check whether the last values are far above all values before the rise."""
    values = metrics.get(metric, ())
    before, last = values[: -KL_STAYED - KL_RAMP], values[-KL_STAYED:]
    if len(before) < WINDOW or not all(map(math.isfinite, before)):
        return None
    usual = max(map(abs, before))
    if not all(value >= max(KL_TIMES * usual, KL_LEAST) for value in last):  # a different rule reports NaN
        return None
    return {"usual": f"{median(before):.4g}", "value": f"{median(last):.4g}", "count": KL_STAYED}


def never_changes(metric: str, other: str, metrics: Metrics) -> Params | None:
    """Check whether a metric has exactly the same value in many evaluations.

    During these evaluations, the loss must change, and the metric `other` must not change. The values 0 and
    1 do not count, because they belong to a task that the model has not started to learn, or has solved.
    """
    values = metrics.get(metric, ())
    if len(set(values)) != 1 or not math.isfinite(values[-1]) or values[-1] in (0, 1):
        return None
    digits = _digits(values[-1])
    enough = EVALUATIONS if digits >= 5 else EVALUATIONS_ROUNDED if digits == 4 else ALWAYS
    if len(values) < enough or len(set(metrics.get("loss", ())[-WINDOW:])) < WINDOW // 2:
        return None
    if len(set(metrics.get(other, ()))) > 1:
        return None
    return {"value": f"{values[-1]:.6g}", "count": len(values)}


#: For each rule, only the first entry whose conditions hold applies.
QUALITIES: tuple[Quality, ...] = (
    Quality(
        COLLAPSE,
        "policy-collapsed",
        (partial(fell_to_floor, "reward"), partial(fell_to_fraction, ("entropy", "grad_norm"))),
    ),
    Quality(EQUAL_REWARDS, "rewards-not-numbers", (partial(not_a_number, "reward", 10),)),
    Quality(
        EQUAL_REWARDS,
        "rewards-equal",
        (partial(stays_zero, "reward_std", WINDOW), partial(below_best, "reward")),
    ),
    Quality(
        EQUAL_REWARDS,
        "rewards-equal",
        (
            partial(stays_zero, "advantage_min", WINDOW),
            partial(stays_zero, "advantage_max", WINDOW),
            partial(below_best, "reward"),
        ),
    ),
    Quality(KL_EXPLOSION, "kl-exploded", (partial(rose_sharply, "kl"),)),
    Quality(KL_EXPLOSION, "kl-not-a-number", (partial(not_a_number, "kl", KL_STAYED, at_first=False),)),
    Quality(
        RATE_FROZEN,
        "rate-never-moved",
        (partial(never_varied, "learning_rate", 0, WINDOW), partial(does_not_fall, "loss")),
        under_way=True,
    ),
    Quality(RATE_FROZEN, "rate-gone", (partial(ends_at_zero, "learning_rate", WINDOW),), under_way=True),
    Quality("nan-loss", "evaluation-not-a-number", (partial(not_a_number, "eval_loss", 3),)),
    Quality(EVALUATION_FROZEN, "evaluation-same", (partial(never_changes, "eval_loss", "eval_accuracy"),)),
)
#: The assessed metrics that are not in a ``Point``.
OF_TRACKS = ("reward", "reward_std", "advantage_min", "advantage_max", "entropy", "kl")
OF_EVALUATIONS = ("eval_loss", "eval_accuracy")


def judge_quality(metrics: Metrics, facts: RunFacts, *, ending: bool) -> Iterator[tuple[Tag, Judgement]]:
    """Yield the tag and the assessment of each rule whose conditions hold for the metrics of a run.

    `ending` is True if the run is near or past its last step, when schedules have ended.
    """
    known: set[Tag] = set()
    for quality in QUALITIES:
        if quality.tag in known or (quality.under_way and (ending or facts.complete)):
            continue
        params: dict[str, str | int] = {}
        for condition in quality.conditions:
            found = condition(metrics)
            if found is None:
                break
            params |= found
        else:
            known.add(quality.tag)
            yield quality.tag, Judgement("degrading", message(f"diagnosis.{quality.note}", **params))
