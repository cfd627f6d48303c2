"""``[[alerts.routes]]``: each table checked, so that a misspelt one is told and not silently never fits."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Sequence
from datetime import time
from typing import TYPE_CHECKING, Any

from stallwatch.config.values import BadValue, type_of

if TYPE_CHECKING:
    from stallwatch_alerts.routing import QuietHours, Route

_CHATS = ("urls", "escalate_urls")
_LISTS = ("runs", "severities", "families", "rules", "urls", "escalate_urls")
_KEYS = (*_LISTS, "quiet", "timezone", "quiet_but", "escalate_minutes", "continue")
_SEVERITIES = ("info", "warning", "critical")
_HOURS = re.compile(r"(\d{1,2}):(\d{2})\s*-\s*(\d{1,2}):(\d{2})")
_HEADER = re.compile(r"\s*\[\[?\s*[\"']?alerts[\"']?\s*\.\s*[\"']?rout\w*[\"']?\s*\]\]?")


class BadRoute(BadValue):
    """What is wrong with one of the tables, and with which of its keys. Never quotes a secret."""

    def __init__(self, number: int, key: str, message: str) -> None:
        super().__init__(f"[{number + 1}]{f'.{key}' if key else ''} {message}")
        self.number = number
        self.key = key

    def line(self, lines: Sequence[str]) -> int | None:
        """Where it stands in the file; of its table, where the key itself is not found."""
        return line_in_route(lines, self.number, self.key)


def line_in_route(lines: Sequence[str], number: int, key: str) -> int | None:
    """The line of a key of the table `number`, from 0; ``None`` where there is no such header."""
    headers = [at for at, line in enumerate(lines) if _HEADER.match(line)]
    if number >= len(headers):
        return None
    begin = headers[number]
    for at in range(begin + 1, len(lines)):
        if lines[at].lstrip().startswith("["):
            break
        if key and re.match(rf"\s*\"?{re.escape(key)}\"?\s*=", lines[at]):
            return at + 1
    return begin + 1


def routes_from(value: Any) -> tuple[tuple[Route, ...], list[BadValue]]:
    """The routes in the order of the file, and all that is wrong with them.

    A route with a mistake is ``broken``: what could be read of it narrows what it is about, and all chats
    hear of that. Nobody hearing of it would be worse than too many.
    """
    problems: list[BadValue] = []
    if isinstance(value, dict):
        problems.append(BadValue("must be a list of tables: write [[alerts.routes]], with two brackets"))
        value = [value]
    if not isinstance(value, list):
        return (), [BadValue("must be tables: write [[alerts.routes]] on a line of its own")]
    routes = []
    for number, table in enumerate(value):
        if isinstance(table, dict):
            route, wrong = _Reader(number, table).read()
            routes.append(route)
            problems += wrong
        else:
            problems.append(BadRoute(number, "", "must be a table: write [[alerts.routes]] for each"))
    return tuple(routes), problems


class _Reader:
    """One table. A mistake is noted, and reading goes on: all of them are told at once."""

    def __init__(self, number: int, table: dict[str, Any]) -> None:
        self._number = number
        self._table = table
        self._problems: list[BadValue] = []

    def read(self) -> tuple[Route, list[BadValue]]:
        """The route, and what is wrong with it."""
        from stallwatch_alerts.routing import Route

        for key in self._table:
            if key not in _KEYS:
                near = difflib.get_close_matches(key, _KEYS, n=1)
                hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(_KEYS)}"
                self._wrong(key, f"is no key of a route; {hint}")
        lists = {key: self._list(key) for key in _LISTS if key in self._table}
        severities = lists.get("severities")
        if severities is not None and self._try("severities", _severities, severities) is None:
            severities = None
        minutes = self._try("escalate_minutes", _minutes, self._table.get("escalate_minutes", 0))
        if minutes is not None and bool(minutes) != bool(self._table.get("escalate_urls")):
            self._wrong("escalate_minutes", "needs escalate_urls, and these need it")
        go_on = self._table.get("continue", False)
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
            broken=bool(self._problems),
        ), self._problems

    def _wrong(self, key: str, message: str) -> None:
        self._problems.append(BadRoute(self._number, key, message))

    def _try(self, key: str, check: Callable[[Any], Any], value: Any) -> Any:
        try:
            return check(value)
        except BadValue as error:
            self._wrong(key, str(error))
            return None

    def _list(self, key: str) -> Any:
        """Its entries. A wrong one among chats leaves the others in use: they are told all the same."""
        value = self._table[key]
        if key in _CHATS and isinstance(value, list) and (sound := list(filter(_is_text, value))):
            for number, item in enumerate(value, 1):
                if not _is_text(item):
                    self._wrong(key, f"must be a list of strings: {_entry(number, item)}, and is left out")
            value = sound
        return self._try(key, _texts, value)

    def _quiet(self) -> QuietHours | None:
        from stallwatch_alerts.routing import QuietHours

        table = self._table
        if "quiet" not in table:
            for key in ("timezone", "quiet_but"):
                if key in table:
                    self._wrong(key, 'needs quiet = "22:00-07:00"')
            return None
        hours = self._try("quiet", _hours, table["quiet"])
        but = self._try("quiet_but", _severities, [table.get("quiet_but", "critical")])
        if not isinstance(table.get("timezone"), str):
            self._wrong("quiet", 'needs the time zone: timezone = "Asia/Shanghai"')
            return None
        zone = self._try("timezone", _zone, table["timezone"])
        if not (hours and but and zone):
            return None
        begin, end = hours
        return QuietHours(begin, end, zone, but[0])


def _texts(value: Any) -> tuple[str, ...]:
    items = [value] if isinstance(value, str) else value
    if not isinstance(items, list):
        raise BadValue(f"must be a list of strings, not {type_of(value)}")
    wrong = next(((number, item) for number, item in enumerate(items, 1) if not _is_text(item)), None)
    if wrong is not None:
        raise BadValue(f"must be a list of strings: {_entry(*wrong)}")
    return tuple(item.strip() for item in items)


def _is_text(item: Any) -> bool:
    return isinstance(item, str) and bool(item.strip())


def _entry(number: int, item: Any) -> str:
    return f"entry {number} is {'empty' if isinstance(item, str) else type_of(item)}"


def _severities(values: Sequence[Any]) -> Sequence[str]:
    for value in values:
        if value not in _SEVERITIES:
            known = f"must be of {', '.join(_SEVERITIES)}"
            raise BadValue(f"{known}, not {_quoted(value)}{_meant(str(value), _SEVERITIES)}")
    return values


def _minutes(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 10_080:
        raise BadValue(f"must be a number of minutes, a week at most, not {_quoted(value)}")
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


def _zone(name: str) -> Any:
    from zoneinfo import ZoneInfo, available_timezones

    try:
        return ZoneInfo(name)
    except (ValueError, OSError, LookupError):
        meant = _meant(name, sorted(available_timezones())) or ', such as "Europe/Berlin"'
        raise BadValue(f"must be a name of the IANA list, not {_quoted(name)}{meant}") from None


def _quoted(value: Any) -> str:
    """A value of a key that holds no secret, as one short line."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:59]}…"


def _meant(name: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.7)
    return f" (did you mean {near[0]}?)" if near else ""
