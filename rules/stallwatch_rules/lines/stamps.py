"""Parse the timestamp that a logger puts at the start of a line or under a key of a JSON line.

Timestamps without a time zone are parsed as UTC. Timestamps without a year (as in glog, syslog, or vLLM)
or without a date can be parsed only if a time ``near`` the line is known.
"""

from __future__ import annotations

import re
from calendar import timegm
from collections.abc import Sequence
from datetime import datetime, timezone
from functools import lru_cache

from stallwatch_rules.hints import may_hold
from stallwatch_rules.lines.training_data import is_training_data
from stallwatch_rules.text.lazy import lazy

# Text that loggers put in front of their timestamps: a level, a name in brackets, or "[after …] datetime:"
# (Megatron-LM).
_LEAD = (
    r"(?:\[[A-Z]+\||\[[\w./ :|-]{1,48}\][ :]{0,2}|[A-Z]{4,9}[:| ]{1,4}|[A-Z]{2,12}\([\w,./-]{1,60}\):"
    r"|datetime: |\[| - ){0,3}"
)
_USUAL = lazy(  # a faster pattern for the most common timestamps
    r"\[?(20\d\d-\d\d-\d\d[ T]\d\d:\d\d:\d\d)(?:[.,](\d{1,9})(?!\.?\d))? ?(Z|[+-]\d\d:?\d\d(?!\d))?"
)
_DATED = lazy(
    _LEAD + r"(20\d\d[-/]\d\d[-/]\d\d)[ T-](\d\d:\d\d:\d\d)(?:[.,](\d{1,9})(?:\.(\d{3}))?)?"
    r" ?(Z|[+-]\d\d:?\d\d(?!\d))?"
)
_LEAD_LENGTH = 110  # maximum number of characters in front of the year
# Timestamps of transformers' examples and of rich.
_SLASHED = lazy(r"\[?(\d\d)/(\d\d)/(20)?(\d\d) (\d\d:\d\d:\d\d)")
_GLOG = lazy(r"\[?[IWEFD](\d{1,2})(\d\d) (\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?")
_LEVELLED = lazy(r"[A-Z]{4,8} (\d\d)-(\d\d) (\d\d:\d\d:\d\d)")  # timestamp of vLLM
_SHORT_DATE = lazy(r"(\d\d)[/-](\d\d) (\d\d:\d\d:\d\d)")  # timestamp of mmengine
_NAMED = lazy(  # timestamp of syslog, dmesg -T, and date
    r"\[?(?:[A-Z][a-z]{2} )?([A-Z][a-z]{2}) {1,2}(\d{1,2}) (\d\d:\d\d:\d\d)(?:\.\d{1,6})?"
    r"(?: [A-Z]{3,4})?(?: (20\d\d)\b)?"
)
_CLOCK = lazy(r"\[?(\d\d:\d\d:\d\d)(?:[.,-](\d{1,6}))?(?:\]|\b(?=[ |-]))")
# The hour is tested after the colon, because Python searches faster for a pattern that begins with a colon.
_ZONED = lazy(r":(?<=\d\d:)\d\d:\d\d(?:[.,]\d{1,9})? ?(?:Z|UTC|GMT|[+-]\d\d:?\d\d(?!\d))")
CANCELLED = "CANCELLED AT"  #: text before the time in the last message of slurmstepd
_CANCELLED = lazy(  # from Slurm, src/slurmd/slurmstepd/req.c: "*** JOB 7 ON n1 CANCELLED AT … ***"
    r"slurmstepd[^ ]{0,80}: error: \*\*\* .{1,200}? CANCELLED AT (20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d)\b"
)
#: Keys under which loggers and trainers store the time of a JSON line (``_timestamp`` is from wandb).
TIME_KEYS = ("time", "ts", "timestamp", "@timestamp", "_timestamp", "asctime", "t")
_KEYED = lazy(
    r"""[{,]\s?["'](?:""" + "|".join(TIME_KEYS) + r""")["']\s?:\s?["']?"""
    r"""(?:(20\d\d-\d\d-\d\d[ T]\d\d:\d\d:\d\d)(?:[.,](\d{1,9}))?\s?(Z|[+-]\d\d:?\d\d)?"""
    r"""|(\d{10,19}(?:\.\d{1,9})?))(?=["',}\s])"""
)  # fmt: skip
# Each key in ``TIME_KEYS`` ends with one of these strings.
_KEY_ENDS = {quote: tuple(end + quote for end in ("time", "ts", "stamp", quote + "t")) for quote in "\"'"}
_YEAR_2001, _YEAR_2100 = 1e9, 4.1e9
_RAYS = ("(raylet", "(gcs_server", "(autoscaler")  # prefixes that the Ray driver adds to lines from daemons
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_DAY = 86400.0
_HOUR = 3600.0
# The Sundays on which daylight saving time starts or ends: month, first and last possible day, and the hours
# in local time that are skipped or repeated. The regions are the European Union and its neighbors, the United
# States and Canada, and Australia and New Zealand (tzdata 2025b).
_HOURS_LEFT_OUT = ((3, 25, 31, (1, 2, 3)), (3, 8, 14, (2,)), (9, 24, 30, (2,)), (10, 1, 7, (2,)))
_HOURS_TWICE = ((10, 25, 31, (1, 2, 3)), (11, 1, 7, (1,)), (4, 1, 7, (2,)))
_SUNDAY = 6


def time_of_line(text: str, near: float | None = None) -> float | None:
    """Return the time of a line, or ``None`` if it is unknown.

    The time is at the start of the line, under a key of a JSON line, or in the slurmstepd message about a
    canceled job.
    """
    first = text[:1]
    if first == "{":
        return _time_of_keys(text)
    if first == "(" and text.startswith(_RAYS):
        text = text[text.find(") ") + 2 :]
        first = text[:1]
    if first == "s" and CANCELLED in text:
        found = _CANCELLED.match(text)
        return unix_time(found[1]) if found is not None else None
    if first == " ":
        text = text.lstrip(" ")
        if not text.startswith("["):  # Megatron-LM lines begin with a space and a bracket
            return None
        first = "["
    if not (first == "[" or "0" <= first <= "9" or "A" <= first <= "Z"):
        return None
    found = _USUAL.match(text)
    if found:
        return unix_time(found[1], found[2], found[3])
    if text.find("20", 1, _LEAD_LENGTH) > 0:
        found = _DATED.match(text)
        if found:
            day, clock, fraction, micro, zone = found.groups()
            return unix_time(f"{day} {clock}", (fraction or "") + (micro or ""), zone)
    if first == "[":
        first = text[1:2]
    if first.isdigit():
        return _digits_first(text, near)
    if first.isupper():
        return _letters_first(text, near)
    return None


def elapsed(earlier: float, later: float) -> float:
    """Return the seconds between two local times that have no time zone.

    If daylight saving time started or ended between the two times, subtract the skipped hour or add the
    repeated hour. If the times are so far apart that they might include a whole repeated hour, it is
    unknown whether an hour must be added, and no hour is added.
    """
    seconds = later - earlier
    if seconds >= _HOUR:
        spared = _set_hours(later, _HOURS_LEFT_OUT)
        is_short = any(earlier < hour and later >= hour + _HOUR for hour in spared)
        return seconds - _HOUR if is_short else seconds
    return seconds + clock_set_back(earlier, later)


def clock_set_back(earlier: float, later: float) -> float:
    """Return how far, in seconds, the end of daylight saving time set back the clock between two times."""
    if not -_HOUR <= later - earlier < 0:
        return 0.0
    twice = _set_hours(later, _HOURS_TWICE)
    return _HOUR if any(hour <= later and earlier < hour + _HOUR for hour in twice) else 0.0


def _set_hours(moment: float, sundays: Sequence[tuple[int, int, int, tuple[int, ...]]]) -> list[float]:
    """Return the start times of the hours that the clock can skip or repeat on the day of `moment`."""
    try:
        day = datetime.fromtimestamp(moment, timezone.utc)
    except (OverflowError, OSError, ValueError):
        return []
    if day.weekday() != _SUNDAY:
        return []
    midnight = moment // _DAY * _DAY
    return [
        midnight + hour * _HOUR
        for month, first, last, hours in sundays
        if day.month == month and first <= day.day <= last
        for hour in hours
    ]


def has_zone(text: str) -> bool:
    """Return whether the timestamp of a line has a time zone. Unix timestamps are in UTC."""
    if text[:1] == "{":
        found = _keyed(text)
        return found is not None and (found[3] or found[4]) is not None
    return _ZONED.search(text, 0, _LEAD_LENGTH) is not None


def may_have_time_key(text: str) -> bool:
    """Return whether a dictionary or a JSON object can have one of the keys in ``TIME_KEYS``."""
    return may_hold(text, _KEY_ENDS["'" if text[1:2] == "'" else '"'])


@lru_cache(maxsize=1)  # the time and the time zone of a line are read one after the other
def _keyed(text: str) -> re.Match[str] | None:
    """Return the match for the first time that is stored under a key of the outermost object."""
    found = _KEYED.search(text) if may_have_time_key(text) else None
    while found is not None:
        at = found.start() + 1
        if text.count("{", 0, at) - text.count("}", 0, at) == 1:
            return found
        found = _KEYED.search(text, at)
    return None


def _time_of_keys(text: str) -> float | None:
    found = _keyed(text)
    if found is None or is_training_data(text):
        return None
    return unix_time(found[1], found[2], found[3]) if found[1] else unix_seconds(float(found[4]))


def unix_seconds(count: float) -> float | None:
    """Convert a Unix timestamp in seconds, ms, µs, or ns to seconds. Return ``None`` for any other number."""
    while count > _YEAR_2100:
        count /= 1000
    return count if count > _YEAR_2001 else None


def _digits_first(text: str, near: float | None) -> float | None:
    found = _SLASHED.match(text)
    if found:
        first, second, century, third, clock = found.groups()
        if int(first) > 12 and not century:  # Spark prints the year first
            first, second, third = second, third, first
        return unix_time(f"20{third}-{first}-{second} {clock}")
    if near is None:
        return None
    found = _SHORT_DATE.match(text)
    if found:
        return _in_the_year(int(found[1]), int(found[2]), found[3], None, near)
    found = _CLOCK.match(text)
    return _on_the_day(found[1], found[2], near) if found else None


def _letters_first(text: str, near: float | None) -> float | None:
    found = _NAMED.match(text)
    if found and found[1] in _MONTHS:
        month, day, clock, year = _MONTHS.index(found[1]) + 1, int(found[2]), found[3], found[4]
        if year:
            return unix_time(f"{year}-{month:02d}-{day:02d} {clock}")
        return None if near is None else _in_the_year(month, day, clock, None, near)
    if near is None:
        return None
    found = _GLOG.match(text)
    if found:
        return _in_the_year(int(found[1]), int(found[2]), found[3], found[4], near)
    found = _LEVELLED.match(text)
    return _in_the_year(int(found[1]), int(found[2]), found[3], None, near) if found else None


def _in_the_year(month: int, day: int, clock: str, fraction: str | None, near: float) -> float | None:
    """Return the time of a timestamp that has no year.

    The year is chosen so that the time is closest to `near`.
    """
    year = datetime.fromtimestamp(near, timezone.utc).year
    moments = [
        unix_time(f"{some}-{month:02d}-{day:02d} {clock}", fraction) for some in (year - 1, year, year + 1)
    ]
    return min((m for m in moments if m is not None), key=lambda m: abs(m - near), default=None)


def _on_the_day(clock: str, fraction: str | None, near: float) -> float | None:
    day = datetime.fromtimestamp(near, timezone.utc).strftime("%Y-%m-%d")
    moment = unix_time(f"{day} {clock}", fraction)
    if moment is None:
        return None
    return min((moment - _DAY, moment, moment + _DAY), key=lambda m: abs(m - near))


def unix_time(stamp: str, fraction: str | None = None, zone: str | None = None) -> float | None:
    """Convert a date and time to a Unix timestamp. `fraction` contains the decimal digits of the seconds."""
    seconds = _whole_seconds(stamp)
    if seconds is None:
        return None
    if fraction:
        seconds += int(fraction) / 10 ** len(fraction)
    if zone and zone != "Z":
        offset = int(zone[1:3]) * 3600 + int(zone[-2:]) * 60
        seconds += offset if zone[0] == "-" else -offset
    return seconds


@lru_cache(maxsize=1024)  # consecutive lines often have timestamps within the same second
def _whole_seconds(stamp: str) -> float | None:
    try:
        midnight = _midnight(stamp[:10])
        hour, minute = int(stamp[11:13]), int(stamp[14:16])
        if midnight is None or hour >= 24 or minute >= 60:
            return None
        return midnight + hour * 3600 + minute * 60 + int(stamp[17:19])
    except ValueError:
        return None


@lru_cache(maxsize=16)
def _midnight(day: str) -> float | None:
    year, month, number = int(day[:4]), int(day[5:7]), int(day[8:])
    if not (1 <= month <= 12 and 1 <= number <= 31):
        return None
    return float(timegm((year, month, number, 0, 0, 0)))
