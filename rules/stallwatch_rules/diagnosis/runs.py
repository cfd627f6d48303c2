"""Detect logs that belong to different runs but that a user passed as the logs of one run.

Only clear signs count, because most folders contain the ranks of one run, and the logs of two nodes are very
similar.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import combinations

import msgspec

from stallwatch_rules.messages import Text, message
from stallwatch_rules.stream import StreamReading
from stallwatch_rules.text.lazy import lazy

MAX_SOURCES = 200  #: maximum number of files that are compared pairwise

_JOB = lazy(r"(?i)(?:slurm|job|run)[-_.]?(\d{4,})")  # job number in names such as slurm-123456.out
_SAME_RUN = lazy(r"(?:^|[/\\])attempt_\d+[/\\]|\.log\.\d+$")  # restarts by torchrun, and rotated logs


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
    """Return a note that names two files from different runs, or "" if all files can belong to one run."""
    courses = [course for key, stream in streams.items() if (course := _course(key, stream)) is not None]
    ordered = sorted(courses, key=lambda course: (course.source, course.rank is None, course.rank or 0))
    ordered = ordered[:MAX_SOURCES]
    for current, other in combinations(ordered, 2):
        sign = _difference(current, other)
        if sign:
            names = {"one": current.source, "other": other.source}
            if sign == "time":
                return message("diagnosis.other-run-time", **names)
            first, second = (
                (current.job, other.job) if sign == "job" else (current.total or 0, other.total or 0)
            )
            return message(f"diagnosis.other-run-{sign}", **names, first=first, second=second)
    return ""


def _course(key: tuple[str, int | None], stream: StreamReading) -> StepRange | None:
    main = stream.timelines.main
    if main is None or main.first_step is None or main.last_step is None:
        return None
    return StepRange(*key, main.first_step, main.last_step, main.total, stream.first_time, stream.last_time)


def _difference(course: StepRange, other: StepRange) -> str:
    """Return the evidence that two logs are from different runs: ``job``, ``total``, ``time``, or ""."""
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
