"""Check each table of ``[[alerts.routes]]``. Misspelled keys are reported, not silently ignored."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from datetime import time
from functools import cache
from typing import Any
from zoneinfo import ZoneInfo, available_timezones

from stallwatch.config.values import BadValue, nearest, type_of
from stallwatch_alerts.routing import QuietHours, Route

_CHATS = ("urls", "escalate_urls")
_LISTS = ("runs", "severities", "families", "rules", *_CHATS)
_KEYS = (*_LISTS, "quiet", "timezone", "quiet_but", "escalate_minutes", "continue")
_SEVERITIES = ("info", "warning", "critical")
_HOURS = re.compile(r"(\d{1,2}):(\d{2})\s*-\s*(\d{1,2}):(\d{2})")


class BadRoute(BadValue):
    """A problem with a key of a route. The message never quotes a secret."""

    def __init__(self, number: int, key: str, message: str) -> None:
        super().__init__(f"[{number + 1}]{f'.{key}' if key else ''} {message}")
        self.number = number  #: position of the route in the file, from 0
        self.key = key


def routes_from(value: Any) -> tuple[tuple[Route, ...], list[BadValue]]:
    """Return the routes in the order of the file and all problems in the routes.

    A route with a mistake is ``broken``. All incidents that match its readable conditions are sent to all
    chats, because too many receivers are better than no receiver.
    """
    problems: list[BadValue] = []
    if isinstance(value, dict):
        problems.append(BadValue("must be a list of tables: write [[alerts.routes]], with two brackets"))
        value = [value]
    if not isinstance(value, list):
        return (), [BadValue("must be tables: write [[alerts.routes]] on a separate line")]
    routes = []
    for number, table in enumerate(value):
        if isinstance(table, dict):
            reader = _Reader(number, table)
            routes.append(reader.read())
            problems += reader.problems
        else:
            problems.append(BadRoute(number, "", "must be a table: write [[alerts.routes]] for each route"))
    return tuple(routes), problems


class _Reader:
    """A reader of one route's table. It continues after a mistake, to report all mistakes together."""

    def __init__(self, number: int, table: dict[str, Any]) -> None:
        self.problems: list[BadValue] = []
        self._number = number
        self._table = table

    def read(self) -> Route:
        """Return the route with all values that could be read."""
        table = self._table
        for key in table:
            if key not in _KEYS:
                near = nearest(key, _KEYS)
                hint = f"did you mean {near}?" if near else f"known keys are {', '.join(_KEYS)}"
                self._wrong(key, f"is not a key of a route; {hint}")
        lists = {key: self._list(key) for key in _LISTS if key in table}
        severities = self._try("severities", _severities, lists.get("severities") or ())
        minutes = self._try("escalate_minutes", _minutes, table.get("escalate_minutes", 0))
        if minutes is not None and bool(minutes) != bool(table.get("escalate_urls")):
            self._wrong("escalate_minutes", "must be set together with escalate_urls")
        go_on = table.get("continue", False)
        if not isinstance(go_on, bool):
            self._wrong("continue", "must be true or false")
        quiet = self._quiet()
        return Route(
            runs=lists.get("runs") or (),
            severities=severities or (),
            families=lists.get("families") or (),
            rules=lists.get("rules") or (),
            urls=lists.get("urls"),
            quiet=quiet,
            escalate_after=60.0 * (minutes or 0),
            escalate_urls=lists.get("escalate_urls") or (),
            go_on=go_on is True,
            broken=bool(self.problems),
        )

    def _wrong(self, key: str, message: str) -> None:
        self.problems.append(BadRoute(self._number, key, message))

    def _try(self, key: str, check: Callable[[Any], Any], value: Any) -> Any:
        try:
            return check(value)
        except BadValue as error:
            self._wrong(key, str(error))
            return None

    def _list(self, key: str) -> tuple[str, ...] | None:
        """Return the valid entries of a list. A wrong chat does not disable the other chats."""
        value = self._table[key]
        items = [value] if isinstance(value, str) else value
        if not isinstance(items, list):
            self._wrong(key, f"must be a list of strings, not {type_of(value)}")
            return None
        sound = [item.strip() for item in items if isinstance(item, str) and item.strip()]
        others_stay = key in _CHATS and bool(sound)
        wrong = [
            f"entry {number} is {'empty' if isinstance(item, str) else type_of(item)}"
            for number, item in enumerate(items, 1)
            if not isinstance(item, str) or not item.strip()
        ]
        for entry in wrong if others_stay else wrong[:1]:
            left_out = ", and is ignored" if others_stay else ""
            self._wrong(key, f"must be a list of strings: {entry}{left_out}")
        return tuple(sound) if others_stay or not wrong else None

    def _quiet(self) -> QuietHours | None:
        table = self._table
        if "quiet" not in table:
            for key in ("timezone", "quiet_but"):
                if key in table:
                    self._wrong(key, 'requires quiet, such as quiet = "22:00-07:00"')
            return None
        hours = self._try("quiet", _hours, table["quiet"])
        but = self._try("quiet_but", _severities, [table.get("quiet_but", "critical")])
        if not isinstance(table.get("timezone"), str):
            self._wrong("quiet", 'requires a time zone, such as timezone = "Asia/Shanghai"')
            return None
        zone = self._try("timezone", _zone, table["timezone"])
        if not (hours and but and zone):
            return None
        begin, end = hours
        return QuietHours(begin, end, zone, but[0])


def _severities(values: Iterable[Any]) -> tuple[str, ...]:
    for value in values:
        if value not in _SEVERITIES:
            known = f"must be one of {', '.join(_SEVERITIES)}"
            raise BadValue(f"{known}, not {_quoted(value)}{_as_written(str(value), _SEVERITIES)}")
    return tuple(values)


def _minutes(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 10_080:
        raise BadValue(f"must be a number of minutes, at most 10080 (a week), not {_quoted(value)}")
    return float(value)


def _hours(value: Any) -> tuple[time, time]:
    found = _HOURS.fullmatch(str(value).strip())
    try:
        begin, end = (time(int(found[at]), int(found[at + 1])) for at in (1, 3)) if found else (None, None)
    except ValueError:
        begin = end = None
    if begin is None or end is None or begin == end:
        raise BadValue(f'must be two times of the day, such as "22:00-07:00", not {_quoted(value)}')
    return begin, end


def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (ValueError, OSError, LookupError):
        meant = _as_written(name, _zones()) or ' (example: "Europe/Berlin")'
        raise BadValue(f"must be an IANA time zone name, not {_quoted(name)}{meant}") from None


@cache
def _zones() -> tuple[str, ...]:
    return tuple(sorted(available_timezones()))  # cached, because it reads the time zone database's folder


def _quoted(value: Any) -> str:
    """Return the value of a key as a short line without secrets, for an error message."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:59]}…"


def _as_written(name: str, known: Iterable[str]) -> str:
    near = nearest(name, known, cutoff=0.7)
    return f" (did you mean {near}?)" if near else ""
