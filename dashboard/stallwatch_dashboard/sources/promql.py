"""The parts of questions in Prometheus' language. Metrics are named without ``stallwatch_``."""

from __future__ import annotations

import json
import re
from collections.abc import Collection

PREFIX = "stallwatch_"
MOST_NAMES = 50  #: runs in one question
_KEPT = "run, __name__, stallwatch_phase, phase, ending"


def newest(names: Collection[str], wanted: str, over: str = "") -> str:
    """The question for the highest newest value of each of these metrics of each run, ranks folded."""
    series = selector(names, wanted)
    return f"max by ({_KEPT}) ({f'last_over_time({series}{over})' if over else series})"


def selector(names: Collection[str], wanted: str) -> str:
    """The series of these metrics, of the runs that `wanted` leaves; "" leaves all."""
    every = "|".join(f"{PREFIX}{name}" for name in names)
    return f'{{__name__=~"{every}"{"," if wanted else ""}{wanted}}}'


def is_run(run: str) -> str:
    """Only this run."""
    return f"run={_quoted(run)}"


def among(runs: Collection[str]) -> str:
    """Only these runs."""
    return f"run=~{_quoted('|'.join(map(re.escape, runs)))}"


def portions(runs: list[str]) -> list[list[str]]:
    """So many at once as one question can name."""
    return [runs[first : first + MOST_NAMES] for first in range(0, len(runs), MOST_NAMES)]


def _quoted(text: str) -> str:
    """A label's value in a question. Go's quotes read the same escapes as JSON's."""
    return json.dumps(text, ensure_ascii=False)
