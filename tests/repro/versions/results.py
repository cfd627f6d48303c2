"""What was seen of each attempt on each stack, kept in files, so that a run can be ended and go on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from watched import Seen

from .attempts import ATTEMPTS, Attempt
from .stacks import STACKS, Stack

OBSERVED = Path(__file__).with_name("observed.json")  #: what the page was written from
Results = dict[tuple[str, str], Seen]  #: by names of stack and attempt


def wanted() -> list[tuple[Stack, Attempt]]:
    """All that is tried, stack by stack."""
    return [(stack, attempt) for stack in STACKS for attempt in ATTEMPTS if attempt.fits(stack)]


def read(path: Path = OBSERVED) -> Results:
    """The results of an earlier run; none where there is no such file."""
    if not path.exists():
        return {}
    return {
        (stack, attempt): Seen(**seen)
        for stack, attempts in json.loads(path.read_text()).items()
        for attempt, seen in attempts.items()
    }


def write(results: Mapping[tuple[str, str], Seen], path: Path = OBSERVED) -> None:
    """Keep the results, in the order of the tables."""
    rows: dict[str, dict[str, object]] = {}
    for stack, attempt in wanted():
        if (seen := results.get((stack.name, attempt.name))) is not None:
            rows.setdefault(stack.name, {})[attempt.name] = asdict(seen)
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps(rows, indent=1, ensure_ascii=False) + "\n")
    fresh.replace(path)
