"""Which runs a reader wants to see, and in which order: what the address of the Runs page says."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import get_args

from stallwatch_dashboard.overview import RunRow, State

#: Orders by their name in the address. Of each, what needs a look comes first; a run without the number last.
_KEYS: Mapping[str, Callable[[RunRow], float | None]] = {
    "started": lambda row: row.started_at,
    "step_time": RunRow.pace,
    "left": RunRow.seconds_left,
    "loss": lambda row: row.loss if row.loss is not None and math.isfinite(row.loss) else None,
    "headroom": lambda row: _minus(row.headroom()),
    "invalidations": RunRow.invalidations_per_step,
    "lost": lambda row: row.stalled_seconds,
}
ORDERS = ("urgency", "run", *_KEYS, "goodput")
MOST_SEARCH = 200  #: characters


@dataclass(frozen=True)
class Selection:
    """States, words to search for and an order; the defaults show everything, the urgent first."""

    states: tuple[State, ...] = ()
    search: str = ""
    order: str = "urgency"

    @classmethod
    def from_query(cls, query: Mapping[str, str]) -> Selection:
        """From the address. What it says amiss is passed over: no link breaks the page."""
        named = query.get("state", "").split(",")
        order = query.get("sort", "urgency")
        return cls(
            tuple(state for state in get_args(State) if state in named),
            query.get("q", "")[:MOST_SEARCH],
            order if order in ORDERS else "urgency",
        )

    def to_query(self) -> dict[str, str]:
        """For the address; what is as by default is left out."""
        told = {"state": ",".join(self.states), "q": self.search, "sort": self.order}
        return {name: text for name, text in told.items() if text and text != "urgency"}

    def of(self, rows: Sequence[RunRow], now: float) -> list[RunRow]:
        """The rows that fit, in the order asked for; `rows` must come with those that need someone first."""
        fitting = [row for row in rows if self._fits(row)]
        if self.order == "run":
            return sorted(fitting, key=lambda row: row.run.casefold())
        if self.order == "goodput":
            return sorted(fitting, key=lambda row: _last_without(_minus(row.goodput(now))))
        if (key := _KEYS.get(self.order)) is None:
            return fitting
        return sorted(fitting, key=lambda row: _last_without(key(row)))

    def _fits(self, row: RunRow) -> bool:
        if self.states and row.state not in self.states:
            return False
        text = " ".join(_words(row)).casefold()
        return all(word in text for word in self.search.casefold().split())


def _words(row: RunRow) -> Iterable[str]:
    """What can be searched: names, where it runs, what was typed, what is wrong."""
    yield from (row.run, row.host, row.phase, row.cause, *row.command)
    for incident in row.open_incidents:
        yield incident.rule


def _last_without(value: float | None) -> tuple[bool, float]:
    return (value is None, -(value or 0.0))


def _minus(value: float | None) -> float | None:
    return None if value is None else -value
