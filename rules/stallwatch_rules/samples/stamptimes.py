"""The times of many full stamps at once: ``2026-11-20 23:56:32``, with a fraction or without."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from stallwatch_rules.samples.blocks import Floats, Whole
from stallwatch_rules.samples.plans import stamp_time

_SECONDS = 19  # characters up to the seconds
_DIGITS = [at for at in range(_SECONDS) if at not in (4, 7, 10, 13, 16)]
_MOST = 9  # digits of a fraction
_PADDING = b"\n" * (_SECONDS + _MOST + 4)
_ZERO, _POINT, _COMMA, _BLANK, _DASH, _PLUS, _COLON, _T, _Z = b"0., -+:TZ"


def times(stamps: Sequence[bytes]) -> Floats:
    """The times of stamps as ``stamp_time`` reads each; NaN for what is none."""
    lengths = np.fromiter(map(len, stamps), np.int64, len(stamps))
    ends = np.cumsum(lengths + 1) - 1
    found = _read(b"\n".join(stamps), ends - lengths)
    if found is not None and (found[1] == ends).all():
        return found[0]
    return np.array([np.nan if (t := stamp_time(stamp)) is None else t for stamp in stamps], np.float64)


def times_at(text: bytes, starts: Whole) -> Floats | None:
    """The times of the stamps that begin at these places; ``None`` if one of them is no such stamp."""
    found = _read(text, starts)
    if found is None:
        return None
    seconds, ends = found
    data = np.frombuffer(text + _PADDING, np.uint8)
    ends = ends + (data[ends] == _BLANK)
    zoned = (data[ends] == _Z) | (
        ((data[ends] == _PLUS) | (data[ends] == _DASH)) & (data[ends + 1] - _ZERO <= 9)
    )
    more = ((data[ends] == _POINT) | (data[ends] == _COMMA)) & (data[ends + 1] - _ZERO <= 9)
    return None if (zoned | more | (data[ends] - _ZERO <= 9)).any() else seconds


def _read(text: bytes, starts: Whole) -> tuple[Floats, Whole] | None:
    """The times, and where each stamp ends; ``None`` if one is of another kind."""
    data = np.frombuffer(text + _PADDING, np.uint8)
    stamps = data[starts[:, None] + np.arange(_SECONDS)]
    digits = stamps[:, _DIGITS] - _ZERO
    between = stamps[:, 10]
    dashes, colons = stamps[:, [4, 7]] == _DASH, stamps[:, [13, 16]] == _COLON
    if not ((digits <= 9).all() and dashes.all() and colons.all()):
        return None
    century, year, month, day, hour, minute, second = (
        digits[:, 0::2].astype(np.int64) * 10 + digits[:, 1::2]
    ).T  # fmt: skip
    valid = (
        (century == 20)
        & (month >= 1)
        & (month <= 12)
        & (day >= 1)
        & (day <= 31)
        & (hour < 24)
        & (minute < 60)
    )
    if not (valid & ((between == _BLANK) | (between == _T))).all():
        return None
    months = ((year + 30) * 12 + month - 1).astype("M8[M]")
    days = months.astype("M8[D]").astype(np.int64) + day - 1
    seconds = (days * 86400 + hour * 3600 + minute * 60 + second).astype(np.float64)
    return _with_fraction(data, starts + _SECONDS, seconds)


def _with_fraction(data: np.ndarray, ends: Whole, seconds: Floats) -> tuple[Floats, Whole] | None:
    goes_on = (data[ends] == _POINT) | (data[ends] == _COMMA)
    value, count = np.zeros(len(ends), np.int64), np.zeros(len(ends), np.int64)
    for at in range(1, _MOST + 2):
        digit = data[ends + at] - _ZERO
        goes_on = goes_on & (digit <= 9)
        if not goes_on.any():
            break
        value = np.where(goes_on, value * 10 + digit, value)
        count += goes_on
    if count.max(initial=0) > _MOST:
        return None
    return seconds + value / 10.0**count, ends + np.where(count, count + 1, 0)
