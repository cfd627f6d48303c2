"""Format numbers, sizes, durations, and times for display."""

from __future__ import annotations

import math
from datetime import datetime, tzinfo

from stallwatch_rules.locale import duration_text
from stallwatch_rules.text.display import size_text

NOTHING = "–"


def integer(value: float | None) -> str:
    """Format a number with thousands separators, such as 12,345."""
    return NOTHING if value is None or not math.isfinite(value) else f"{round(value):,}"


def number(value: float | None) -> str:
    """Format a number with four significant digits. A loss can also be NaN or infinite."""
    if value is None:
        return NOTHING
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    if value and not 1e-3 <= abs(value) < 1e5:
        return f"{value:.3e}"
    return f"{value:.4g}"


def seconds(value: float | None, language: str = "en") -> str:
    """Format a duration, such as 83 ms, 2.31 s, 42 s, 4 min 10 s, 3 h 5 min, 2 d 4 h, or 4 分 10 秒."""
    if value is None or not math.isfinite(value):
        return NOTHING
    return f"−{duration_text(-value, language)}" if value < 0 else duration_text(value, language)


def byte_size(value: float | None) -> str:
    """Format a number of bytes with binary units, such as 1.5 GiB."""
    return NOTHING if value is None or not math.isfinite(value) else size_text(value)


def clock(time: float | None, zone: tzinfo | None, now: float | None = None) -> str:
    """Format a time of day. If the time is not on the day of `now`, add the date."""
    if time is None:
        return NOTHING
    moment = datetime.fromtimestamp(time, zone)
    if now is not None and moment.date() == datetime.fromtimestamp(now, zone).date():
        return f"{moment:%H:%M:%S}"
    return f"{moment:%Y-%m-%d %H:%M:%S}"


def steps(step: float | None, total: float | None) -> str:
    """Format a step and the total number of steps, such as 57 / 900."""
    return integer(step) if total is None else f"{integer(step)} / {integer(total)}"
