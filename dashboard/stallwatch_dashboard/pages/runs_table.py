"""The table of runs: numbers below, so that a click on a column sorts by size; words and units on top."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from datetime import tzinfo
from typing import Any

import pandas as pd
import streamlit as st

from stallwatch_dashboard import formats
from stallwatch_dashboard.charts.phases import COLOURS
from stallwatch_dashboard.overview import RunRow
from stallwatch_dashboard.safetext import cell
from stallwatch_dashboard.verdict import rule_name
from stallwatch_dashboard.words import Say

#: Shape and word together: colour is never the only sign.
ICONS = {
    "starting": "◌",
    "training": "▶",
    "stalled": "■",
    "degraded": "▼",
    "failed": "✖",
    "interrupted": "⊘",
    "finished": "✔",
    "stale": "?",
}


def table(rows: Sequence[RunRow], now: float, zone: tzinfo | None, say: Say) -> Any:
    """A pandas ``Styler``: its values sort, its texts are shown."""
    values = {
        say("state"): [f"{ICONS[row.state]} {say(row.state)}" for row in rows],
        say("run"): [cell(row.run) for row in rows],
        say("open_incidents"): [_incidents(row, say) for row in rows],
        say("phase"): [_phase(row.phase, say) for row in rows],
        say("step"): _floats(rows, lambda row: row.step),
        say("total"): _floats(rows, lambda row: row.total_steps),
        say("time_left"): _floats(rows, RunRow.seconds_left),
        say("step_time"): _floats(rows, lambda row: row.step_seconds),
        say("against_baseline"): _floats(rows, RunRow.pace),
        say("loss"): _floats(rows, lambda row: row.loss),
        say("loss_course"): [list(row.losses) for row in rows],
        say("memory"): _floats(rows, lambda row: row.memory_bytes),
        say("headroom"): _floats(rows, RunRow.headroom),
        say("invalidations_a_step"): _floats(rows, RunRow.invalidations_per_step),
        say("goodput"): _floats(rows, lambda row: row.goodput(now)),
        say("lost_to_stalls"): _floats(rows, lambda row: row.stalled_seconds),
        say("started"): _floats(rows, lambda row: row.started_at),
        say("duration"): _floats(rows, lambda row: row.seconds(now)),
        say("host"): [cell(row.host) for row in rows],
    }
    frame = pd.DataFrame(values)
    shown: Mapping[str, Callable[[float], str]] = {
        say("step"): formats.integer,
        say("total"): formats.integer,
        say("time_left"): formats.seconds,
        say("step_time"): formats.seconds,
        say("against_baseline"): _times,
        say("loss"): formats.number,
        say("memory"): formats.byte_size,
        say("headroom"): formats.byte_size,
        say("invalidations_a_step"): formats.number,
        say("goodput"): _percent,
        say("lost_to_stalls"): _lost,
        say("started"): lambda time: formats.clock(time, zone, now),
        say("duration"): formats.seconds,
    }
    return frame.style.format({name: _or_nothing(how) for name, how in shown.items()})


def _incidents(row: RunRow, say: Say) -> str:
    """What is open; of a run that failed, what it died of."""
    rules = {row.cause} if row.cause else {incident.rule for incident in row.open_incidents}
    return cell(", ".join(sorted(rule_name(rule, say) for rule in rules)))


def _phase(phase: str, say: Say) -> str:
    """In words; one that only a trainer of its own knows as it names it."""
    return say(f"phase_{phase}") if phase in COLOURS else cell(phase) or formats.NOTHING


#: Pixels of each column, in the table's order: those up to the invalidations fit into a window of
#: 1,440 (whose table is 1,344 wide, 33 of it for the boxes that choose a row); the others are a scroll away.
_WIDTHS = {
    "state": 100,
    "run": 160,
    "open_incidents": 150,
    "phase": 84,
    "step": 72,
    "total": 76,
    "time_left": 88,
    "step_time": 80,
    "against_baseline": 84,
    "loss": 68,
    "loss_course": 90,
    "memory": 80,
    "headroom": 80,
    "invalidations_a_step": 96,
    "goodput": 72,
    "lost_to_stalls": 96,
    "started": 140,
    "duration": 96,
    "host": 140,
}
_HELP = {
    "against_baseline": "help_baseline",
    "headroom": "help_headroom",
    "goodput": "help_goodput",
    "lost_to_stalls": "help_lost",
}


def columns(say: Say) -> dict[str, Any]:
    """What Streamlit must know of the columns."""
    config = st.column_config
    found = {}
    for name, width in _WIDTHS.items():
        if name == "loss_course":
            found[say(name)] = config.LineChartColumn(width=width)
        elif name in _HELP:
            found[say(name)] = config.NumberColumn(width=width, help=say(_HELP[name]))
        else:
            found[say(name)] = config.Column(width=width, pinned=name in ("state", "run") or None)
    return found


def _floats(rows: Sequence[RunRow], number: Callable[[RunRow], float | None]) -> list[float]:
    return [float("nan") if (value := number(row)) is None else float(value) for row in rows]


def _or_nothing(how: Callable[[float], str]) -> Callable[[Any], str]:
    return lambda value: formats.NOTHING if math.isnan(value) else how(value)


def _times(factor: float) -> str:
    return f"× {factor:.2f}"


def _percent(share: float) -> str:
    return f"{share * 100:.0f} %"


def _lost(seconds: float) -> str:
    return formats.NOTHING if seconds == 0 else formats.seconds(seconds)
