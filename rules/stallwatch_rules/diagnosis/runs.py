"""Detect logs that were given together but belong to different runs, and so cannot be read as one run.

Only clear signs count: most folders contain one run's ranks, and the logs of two nodes are much alike.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from itertools import combinations, islice
from statistics import median

import msgspec

from stallwatch_rules.messages import Text, message
from stallwatch_rules.stream import StreamReading
from stallwatch_rules.text.lazy import lazy

MAX_SOURCES = 200  #: maximum number of files that are compared pairwise
ENOUGH = 8  #: losses that two files must both contain for a difference to count
MOST = 256  #: maximum number of losses compared per file
OTHERWISE = 0.001  #: minimum relative difference between losses that counts

_JOB = lazy(r"(?i)(?:slurm|job|run)[-_.]?(\d{4,})")  # slurm-123456.out, job_123456.log
_SAME_RUN = lazy(r"(?:^|[/\\])attempt_\d+[/\\]|\.log\.\d+$")  # torchrun's restarts, rotated logs


class StepRange(msgspec.Struct, frozen=True):
    """The range of steps and times in the log of one rank."""

    source: str
    rank: int | None
    first_step: int
    last_step: int
    total: int | None
    began: float | None
    ended: float | None

    @property
    def job(self) -> str:
        """The scheduler's job number in the file's name, or an empty string."""
        found = _JOB.search(re.split(r"[/\\]", self.source)[-1])
        return found[1] if found is not None else ""


def runs_note(streams: Mapping[tuple[str, int | None], StreamReading]) -> Text:
    """Return a message that names two files of different runs, and the sign of it; empty if none differ."""
    courses = [course for key, stream in streams.items() if (course := _course(key, stream)) is not None]
    ordered = sorted(courses, key=lambda course: (course.source, course.rank is None, course.rank or 0))
    ordered = ordered[:MAX_SOURCES]
    for current, other in combinations(ordered, 2):
        sign = _differ(current, other)
        if sign:
            names = {"one": current.source, "other": other.source}
            if sign == "time":
                return message("diagnosis.other-run-time", **names)
            first, second = (
                (current.job, other.job) if sign == "job" else (current.total or 0, other.total or 0)
            )
            return message(f"diagnosis.other-run-{sign}", **names, first=first, second=second)
    losses = [found for key, stream in streams.items() if (found := _losses(key, stream)) is not None]
    for mine, theirs in combinations(sorted(losses, key=lambda each: each.source)[:MAX_SOURCES], 2):
        if _train_apart(mine, theirs):
            return message("diagnosis.other-run-losses", one=mine.source, other=theirs.source)
    return ""


class Losses(msgspec.Struct, frozen=True):
    """The losses and gradient norms, by epoch, that the transformers Trainer printed in one file."""

    source: str
    rank: int | None
    first: float
    at: Mapping[float, tuple[float, float]]


def _losses(key: tuple[str, int | None], stream: StreamReading) -> Losses | None:
    """Return the losses in a stream's dicts that also have norm, rate and epoch, if there are enough.

    Their loss is the mean over all ranks (transformers 5.23.0, trainer.py, ``nested_gather``): two files of
    one training that both print it print equal losses.
    """
    curve = stream.curves.by_series.get("dict")
    if curve is None or stream.in_part:
        return None
    values = {
        point.epoch: (point.loss, point.grad_norm)
        for point in islice(curve.points, MOST)
        if point.epoch is not None
        and point.learning_rate is not None
        and point.loss is not None
        and point.grad_norm is not None
    }
    return Losses(*key, next(iter(values)), values) if len(values) >= ENOUGH else None


def _train_apart(losses: Losses, other: Losses) -> bool:
    """Return whether two files began at the same epoch, and printed different losses from then on.

    Ranks that print their own dicts, each with the loss of its own batch, still print the same gradient norm.
    """
    if losses.source == other.source or _SAME_RUN.search(losses.source) or _SAME_RUN.search(other.source):
        return False
    if losses.first != other.first or (losses.rank is not None and other.rank is not None):
        return False
    both = [(*values, *other.at[epoch]) for epoch, values in losses.at.items() if epoch in other.at]
    both = [numbers for numbers in both if all(map(math.isfinite, numbers))]
    if len(both) < ENOUGH:
        return False
    norms = [(norm, others) for _, norm, _, others in both]
    shared = len(set(norms)) > 1 and not _apart(norms)
    return not shared and _apart([(loss, others) for loss, _, others, _ in both])


def _apart(pairs: Sequence[tuple[float, float]]) -> bool:
    """Return whether most of these pairs contain two different numbers."""
    return median(abs(one - other) / max(abs(one), abs(other), 1e-9) for one, other in pairs) > OTHERWISE


def _course(key: tuple[str, int | None], stream: StreamReading) -> StepRange | None:
    main = stream.timelines.main
    if main is None or main.first_step is None or main.last_step is None:
        return None
    return StepRange(*key, main.first_step, main.last_step, main.total, stream.first_time, stream.last_time)


def _differ(course: StepRange, other: StepRange) -> str:
    """Return the sign of different runs: ``job``, ``total`` or ``time``; empty if they may be one run."""
    if course.source == other.source or _SAME_RUN.search(course.source) or _SAME_RUN.search(other.source):
        return ""
    if course.job and other.job and course.job != other.job:
        return "job"
    if course.rank != other.rank:
        return ""
    if course.total and other.total and course.total != other.total:
        return "total"
    early, late = (course, other) if (course.began or 0.0) <= (other.began or 0.0) else (other, course)
    if early.ended is None or late.began is None or late.began <= early.ended:
        return ""
    return "time" if late.first_step <= early.last_step else ""
