"""Parse numbers as trainers print them: ``2.1E+00``, ``5,000``, ``nan``, ``1 day, 0:03:34``."""

from __future__ import annotations

from stallwatch_rules.text.lazy import lazy

NUMBER = (
    r"[-+]?(?:\d+(?:,\d{3})*(?:\.\d*)?(?:[eE][-+]?\d+)?|\.\d+(?:[eE][-+]?\d+)?"
    r"|[nN]a[nN]|[iI]nf(?:inity)?)"
)
"""A regular expression without groups: integers, decimals, thousands separators, NaN and infinity."""
PAD = r"\s{0,16}"  #: a regular expression for the spaces that align a number, as in ``loss        nan``


def number(text: str) -> float:
    """Return the value of a number that matches ``NUMBER``."""
    return float(text.replace(",", ""))


_CLOCK = lazy(r"(?:(\d+) days?, ?)?(?:(\d+):)?(\d{1,2}):(\d\d(?:\.\d+)?)")
_UNITS = lazy(r"(?:(\d+)d)? ?(?:(\d+)h)? ?(?:(\d+)m)? ?(?:(\d+(?:\.\d+)?)s)?")


def duration(text: str) -> float | None:
    """Convert the text of a duration to seconds. Return ``None`` if the text is not a duration.

    Examples: ``0:03:34``, ``2 days, 6:39:40``, ``10:27``, ``2h 3m 4s``.
    """
    if text.replace(":", "").isdecimal():  # a faster method for the most common form
        *before, second = text.rsplit(":", 2)
        hour, minute = before if len(before) == 2 else ("0", *before) if before else ("", "")
        if len(second) == 2 and 0 < len(minute) <= 2 and hour.isdecimal():
            return float(hour) * 3600 + int(minute) * 60 + int(second)
    found = _CLOCK.fullmatch(text) or (_UNITS.fullmatch(text) if text[-1:].isalpha() else None)
    if found is None:
        return None
    days, hours, minutes, seconds = (float(part or 0) for part in found.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


def lowered(text: str) -> str:
    """Convert text to lowercase without changing its length, so that positions in the text remain valid."""
    lower = text.lower()
    return lower if len(lower) == len(text) else text.replace("\u0130", "i").lower()
