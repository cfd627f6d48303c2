"""Build the table of runs: the text of its cells, the values for sorting, and the searchable text."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import streamlit as st

from stallwatch_alerts.messages.ranks import fold_hosts
from stallwatch_dashboard import formats
from stallwatch_dashboard.charts.run import COLOURS
from stallwatch_dashboard.data.overview import RunRow
from stallwatch_dashboard.safetext import cell, plain
from stallwatch_dashboard.verdict import rule_name, title_of
from stallwatch_dashboard.words import Reader, Say
from stallwatch_exporter.incident import Incident
from stallwatch_rules.pages.page import RulePage
from stallwatch_rules.stacks.sentences import located

#: A shape for each state. The table also shows a word, because color must never be the only sign.
ICONS = {
    "starting": "◌",
    "training": "▶",
    "waiting": "…",
    "stalled": "■",
    "degraded": "▼",
    "failed": "✖",
    "interrupted": "⊘",
    "finished": "✔",
    "unwatched": "◇",
    "stale": "?",
}
#: Sort orders in the menu, by their names in the address. A click on a column header can also sort by other
#: columns.
ORDERS = (
    "urgency",
    "run",
    "started",
    "step_time",
    "left",
    "loss",
    "headroom",
    "invalidations",
    "goodput",
    "lost",
)
_FRONTEND = Path(__file__).with_name("runs_frontend")
_MOST_FOUND = 2000  #: maximum number of searchable characters of a run


def _seconds_lost(value: float, language: str) -> str:
    return formats.seconds(value or None, language)


def _percent(share: float) -> str:
    return f"{share * 100:.0f}%"


@dataclass(frozen=True)
class Column:
    """A column of the table. It contains words if `field` is empty. Otherwise, it contains numbers."""

    name: str  #: key of the heading's text
    width: int  #: width in pixels
    order: str = ""  #: the column's name in the address; if empty, the column cannot be sorted
    field: str = ""  #: the field of `RunRow` that contains the number
    shown: Callable[..., str] = formats.number
    is_duration: bool = False  #: True if `shown` also takes the language
    rising: bool = False  #: True if the lowest number comes first, false if the highest number does
    help: str = ""
    long: bool = False  #: True if the text can be wider than its column
    widest: int = 0  #: maximum width, if the column takes the remaining space; otherwise 0


#: The columns up to the duration fit into a window of 1,280 pixels. The incident takes the remaining space.
COLUMNS = (
    Column("state", 126, "urgency", rising=True),
    Column("run_column", 158, "run", rising=True, long=True),
    Column("open_incidents", 178, "incident", rising=True, long=True, widest=420),
    Column("phase", 108, "phase", rising=True, long=True),
    Column("step", 68, "step", "step", formats.integer),
    Column("total", 70, "total", "total_steps", formats.integer),
    Column("time_left", 84, "left", "seconds_left", formats.seconds, True),
    Column("step_time", 78, "seconds", "step_seconds", formats.seconds, True),
    Column("against_baseline", 86, "step_time", "pace", "× {:.2f}".format, help="help_baseline"),
    Column("loss", 68, "loss", "loss"),
    Column("loss_course", 70),
    Column("duration", 88, "duration", "seconds", formats.seconds, True),
    Column("memory", 84, "memory", "memory_bytes", formats.byte_size),
    Column("headroom", 88, "headroom", "headroom", formats.byte_size, rising=True, help="help_headroom"),
    Column("invalidations_a_step", 164, "invalidations", "invalidations_per_step"),
    Column("goodput", 80, "goodput", "goodput", _percent, rising=True, help="help_goodput"),
    Column("lost_to_stalls", 104, "lost", "stalled_seconds", _seconds_lost, True, help="help_lost"),
    Column("started", 144, "started", "started_at"),
    Column("host", 140, "host", rising=True, long=True),
)
_LAST_FITTING = "duration"
_ALWAYS = 2  #: number of columns, from the left, that are shown even if they are empty


def draw_table(table: dict[str, Any], *, key: str) -> None:
    """Draw the data that `table` returned. The same `key` keeps the user's sorting and search."""
    html, css, js = _sources()
    # The component is registered at each draw, because the test framework of Streamlit has a separate
    # registry of components for each page (1.58).
    draw = st.components.v2.component("stallwatch_runs", html=html, css=css, js=js, isolate_styles=False)
    draw(data=table, key=key)


def table(rows: Sequence[RunRow], reader: Reader, pages: Mapping[str, RulePage]) -> dict[str, Any]:
    """Return the table's data for the browser, which searches and sorts.

    The most urgent of the `rows` come first. All data is shown as text, except `key`, which identifies the
    run to open. Empty columns are omitted.
    """
    say = reader.say
    drawn = [_row(row, reader, pages) for row in rows]
    empty = ("", formats.NOTHING)
    places = [
        place
        for place in range(len(COLUMNS))
        if place < _ALWAYS or any(row["cells"][place] not in empty for row in drawn)
    ]
    for row in drawn:
        row |= {key: [row[key][place] for place in places] for key in ("cells", "values")}
    columns = [COLUMNS[place] for place in places]
    known = {column.order for column in columns}
    return {
        "language": reader.language,
        "words": {
            "runs": say("runs"),
            "search": say("find_run"),
            "order": say("order"),
            "state": say("state"),
            "shown": say("runs_shown", "{0}", "{1}"),
            "none": say("no_run_fits"),
            "hint": say("open_run"),
            "nothing": formats.NOTHING,
        },
        "states": [{"name": name, "icon": ICONS[name], "word": say(name)} for name in ICONS],
        "orders": [(name, say("ordered_by", say(f"order_{name}"))) for name in ORDERS if name in known],
        "columns": [_column(column, _width(column, columns), say) for column in columns],
        "rows": drawn,
    }


def _width(column: Column, columns: Sequence[Column]) -> str:
    """Return a column's width as CSS. The width can depend on the width of the table."""
    if not column.widest:
        return f"{column.width}px"
    names = [column.name for column in COLUMNS]
    fitting = names[: names.index(_LAST_FITTING) + 1]
    others = sum(other.width for other in columns if other.name in fitting and not other.widest)
    return f"clamp({column.width}px, 100cqw - {others}px, {column.widest}px)"


def _column(column: Column, width: str, say: Say) -> dict[str, Any]:
    return {
        "title": say(column.name),
        "width": width,
        "order": column.order,
        "number": bool(column.field),
        "rising": column.rising,
        "help": say(column.help) if column.help else "",
        "long": column.long,
        "course": column.name == "loss_course",
    }


def _row(row: RunRow, reader: Reader, pages: Mapping[str, RulePage]) -> dict[str, Any]:
    say = reader.say
    numbers = [_number(column, row, reader.now) for column in COLUMNS]
    titles = _titles(row, reader, pages)
    words = {
        "state": f"{ICONS[row.state]} {_state(row, say)}",
        "run_column": cell(row.run),
        "open_incidents": cell(_located(row, reader) or titles),
        "phase": _phase(row, say),
        "loss_course": _course(row.losses),
        "started": reader.clock(row.started_at),
        "host": cell(fold_hosts(row.hosts, reader.language) if row.hosts else row.host),
    }
    return {
        "key": row.run,
        "state": row.state,
        "cells": [
            words[column.name] if column.name in words else _shown(column, value, reader.language)
            for column, value in zip(COLUMNS, numbers, strict=True)
        ],
        "values": [None if value is None or not math.isfinite(value) else value for value in numbers],
        "found": plain(" ".join((*_searched(row), titles)), _MOST_FOUND),
    }


def _number(column: Column, row: RunRow, now: float) -> float | None:
    number = getattr(row, column.field) if column.field else None
    return number(now) if callable(number) else number


def _shown(column: Column, value: float | None, language: str) -> str:
    if value is None:
        return formats.NOTHING
    return column.shown(value, language) if column.is_duration else column.shown(value)


def _shown_incidents(row: RunRow) -> Sequence[Incident]:
    """Return the open incidents or, for an ended run, the incident at its end."""
    return row.open_incidents if row.ended_at is None or row.incident is None else [row.incident]


def _titles(row: RunRow, reader: Reader, pages: Mapping[str, RulePage]) -> str:
    """Return the titles of the shown incidents or, if there are none, the reason why the run ended."""
    found = {title_of(incident, pages.get(incident.rule), reader) for incident in _shown_incidents(row)}
    if row.cause and not found:
        found = {rule_name(row.cause, reader.say, row.exception)}
    return "; ".join(sorted(found))


def _located(row: RunRow, reader: Reader) -> str:
    """Return a short text about the ranks that block the run and, if known, their position in the code."""
    stalls = [incident for incident in _shown_incidents(row) if incident.kind == "stall"]
    texts = [reader.render(located(stall.stacks)) for stall in stalls if stall.stacks is not None]
    return "; ".join(filter(None, texts))


def _state(row: RunRow, say: Say) -> str:
    """Return the state. If the run finished before its last step, add the percentage of completed steps."""
    if not (row.ended_early and row.step is not None and row.total_steps):
        return say(row.state)
    return say("finished_early", say(row.state), int(100 * row.step / row.total_steps))


def _phase(row: RunRow, say: Say) -> str:
    """Return the translated phase, or the name of a trainer's own phase. Mark the phase of a stalled run."""
    phase = say(f"phase_{row.phase}") if row.phase in COLOURS else cell(row.phase)
    if phase and row.state == "stalled":
        phase = say("phase_stalled", phase)
    return phase or formats.NOTHING


def _course(values: Sequence[float]) -> str:
    """Return the heights of the loss curve's points, as percentages between the lowest and highest values."""
    if not values:
        return ""
    low, high = min(values), max(values)
    return " ".join(str(round(100 * (value - low) / (high - low)) if high > low else 50) for value in values)


def _searched(row: RunRow) -> tuple[str, ...]:
    rules = (incident.rule for incident in row.open_incidents)
    return (row.run, row.host, *row.hosts, row.phase, row.cause, row.exception, *rules, *row.command)


@functools.cache
def _sources() -> tuple[str, str, str]:
    """Return the table's HTML, CSS, and JavaScript, which are constant and contain no data."""
    names = ("runs.html", "runs.css", "runs.js")
    html, css, js = ((_FRONTEND / name).read_text(encoding="utf-8") for name in names)
    return html, css, js
