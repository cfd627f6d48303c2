"""The table of runs: numbers below, so that a click on a column sorts by size; words and units on top."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import tzinfo
from typing import Any

import pandas as pd
import streamlit as st

from stallwatch_dashboard import formats
from stallwatch_dashboard.overview import RunRow
from stallwatch_dashboard.words import Say

#: Shape and word together: colour is never the only sign.
ICONS = {
    "starting": "◌",
    "training": "▶",
    "stalled": "■",
    "degraded": "▼",
    "failed": "✖",
    "finished": "✔",
    "stale": "?",
}


def table(rows: Sequence[RunRow], now: float, zone: tzinfo | None, say: Say) -> Any:
    """A pandas ``Styler``: its values sort, its texts are shown."""
    values = {
        say("state"): [f"{ICONS[row.state]} {say(row.state)}" for row in rows],
        say("run"): [row.run for row in rows],
        say("open_incidents"): [", ".join(sorted({i.rule for i in row.open_incidents})) for row in rows],
        say("phase"): [say(f"phase_{row.phase}") if row.phase else formats.NOTHING for row in rows],
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
        say("host"): [row.host for row in rows],
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


def columns(say: Say) -> dict[str, Any]:
    """What Streamlit must know of the columns."""
    config = st.column_config
    return {
        say("run"): config.TextColumn(width="medium", pinned=True),
        say("state"): config.TextColumn(pinned=True),
        say("open_incidents"): config.TextColumn(width="medium"),
        say("loss_course"): config.LineChartColumn(width="small"),
        say("against_baseline"): config.NumberColumn(help=say("help_baseline")),
        say("headroom"): config.NumberColumn(help=say("help_headroom")),
        say("goodput"): config.NumberColumn(help=say("help_goodput")),
        say("lost_to_stalls"): config.NumberColumn(help=say("help_lost")),
    }


def _floats(rows: Sequence[RunRow], number: Callable[[RunRow], float | None]) -> list[float]:
    return [float("nan") if (value := number(row)) is None else float(value) for row in rows]


def _or_nothing(how: Callable[[float], str]) -> Callable[[Any], str]:
    return lambda value: formats.NOTHING if pd.isna(value) else how(value)


def _times(factor: float) -> str:
    return f"× {factor:.2f}"


def _percent(share: float) -> str:
    return f"{share * 100:.0f} %"


def _lost(seconds: float) -> str:
    return formats.NOTHING if seconds == 0 else formats.seconds(seconds)
