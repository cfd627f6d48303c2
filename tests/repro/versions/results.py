"""Results of each attempt on each stack in files, so that a session can be stopped and continued."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from watched import Seen

from .attempts import ATTEMPTS, Attempt
from .stacks import STACKS, Stack

OBSERVED = Path(__file__).with_name("observed.json")  #: results from which the page was written
Results = dict[tuple[str, str], Seen]  #: results by the names of stack and attempt


def wanted() -> list[tuple[Stack, Attempt]]:
    """Return all pairs of stack and attempt, stack by stack."""
    return [(stack, attempt) for stack in STACKS for attempt in ATTEMPTS if attempt.fits(stack)]


def read(path: Path = OBSERVED) -> Results:
    """Return the results of an earlier session; none if the file does not exist."""
    if not path.exists():
        return {}
    return {
        (stack, attempt): Seen(**seen)
        for stack, attempts in json.loads(path.read_text()).items()
        for attempt, seen in attempts.items()
    }


def write(results: Mapping[tuple[str, str], Seen], path: Path = OBSERVED) -> None:
    """Write the results in the order of the tables."""
    rows: dict[str, dict[str, object]] = {}
    for stack, attempt in wanted():
        if (seen := results.get((stack.name, attempt.name))) is not None:
            rows.setdefault(stack.name, {})[attempt.name] = asdict(seen)
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps(rows, indent=1, ensure_ascii=False) + "\n")
    fresh.replace(path)
