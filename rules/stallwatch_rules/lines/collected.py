"""Lines as log collectors and structured loggers keep them: one JSON object each, its text under some key.

Fluentd, Fluent Bit, Vector, exports of Loki and the clouds, journald's ``-o json`` and loggers that write
JSON all differ in the key: ``message``, ``msg``, ``log``, ``line``, ``textPayload``. Beside it stand a time,
a level or where the line came from; without one of these it is somebody's data. Numbers that a trainer writes
as JSON (``{"step": 3, "loss": 0.5, …}``) are no such record, unless a traceback is among them: a logger may
bind the step to all that it writes.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from stallwatch_rules.hints import may_hold
from stallwatch_rules.lines.datatext import is_data
from stallwatch_rules.lines.stamps import own_time

#: keys under which the text may stand
TEXTS = ("message", "msg", "log", "line", "textPayload", "MESSAGE", "@message", "body")
_TIMES = (
    "time",
    "ts",
    "timestamp",
    "@timestamp",
    "asctime",
    "receiveTimestamp",
    "__REALTIME_TIMESTAMP",
    "datetime",
)
_BESIDE = frozenset(
    (*_TIMES, "level", "levelname", "severity", "lvl", "stream", "kubernetes", "container_name", "hostname")
)
_TRACEBACKS = ("exc_info", "exception", "exc_text", "traceback", "stack_trace", "stack_info")
_QUOTED = tuple(f'"{key}"' for key in (*TEXTS, *_TRACEBACKS))
_RANKS = ("rank", "global_rank")
_MOST_RANKS = 1_000_000
_NUMBERS = frozenset(("loss", "train_loss", "eval_loss", "step", "global_step", "epoch", "iteration"))
_MOST = 256 * 1024  # characters of a record
_YEAR_2100 = 4.1e9
_DIGITS = 19  # of nanoseconds until then
_decoder = msgspec.json.Decoder(dict[str, object])


class Collected(NamedTuple):
    """One record, its text taken out."""

    time: float | None
    text: str  #: its lines parted by carriage returns, as a redrawn line's are


def collected(text: str) -> Collected | None:
    """The record that a line is."""
    if len(text) > _MOST or not may_hold(text, _QUOTED) or is_data(text):
        return None
    try:
        record = _decoder.decode(text)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return None
    if _BESIDE.isdisjoint(record):
        return None
    more = [value for key in _TRACEBACKS if isinstance(value := record.get(key), str) and value]
    if not more and not _NUMBERS.isdisjoint(record):
        return None
    told = next((value for key in TEXTS if isinstance(value := record.get(key), str)), None)
    if told is None and not more:
        return None
    lines = "\n".join(more if told is None else (told, *more)).rstrip().split("\n")
    rank = next((value for key in _RANKS if _is_rank(value := record.get(key))), None)
    if rank is not None:
        lines = [f"[rank{rank}]: {line}" for line in lines]
    return Collected(_time(record), "\r".join(lines))


def _is_rank(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _MOST_RANKS


def _time(record: dict[str, object]) -> float | None:
    """When it was written: a stamp, or seconds, milli-, micro- or nanoseconds since 1970."""
    for key in _TIMES:
        value = record.get(key)
        if isinstance(value, str):
            if not (value.isascii() and value.isdigit()):
                stamp = own_time(value)
                if stamp is not None:
                    return stamp
                continue
            if len(value) > _DIGITS:
                continue
            value = int(value)
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < _YEAR_2100 * 1e9:
            while value > _YEAR_2100:
                value /= 1000
            return float(value) if value > 1e9 else None
    return None
