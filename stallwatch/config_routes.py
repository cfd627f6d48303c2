"""``[[alerts.routes]]``: each table checked, so that a misspelt one is told and not silently never fits."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from datetime import time
from typing import TYPE_CHECKING, Any

from stallwatch.config_values import BadValue

if TYPE_CHECKING:
    from stallwatch_alerts.routing import QuietHours, Route

_LISTS = ("runs", "severities", "families", "rules", "urls", "escalate_urls")
_KEYS = (*_LISTS, "quiet", "timezone", "quiet_but", "escalate_minutes", "continue")
_SEVERITIES = ("info", "warning", "critical")
_HOURS = re.compile(r"(\d{1,2}):(\d{2})\s*-\s*(\d{1,2}):(\d{2})")
_HEADER = re.compile(r"\s*\[\[\s*alerts\s*\.\s*routes\s*\]\]")


class BadRoute(BadValue):
    """What is wrong with one of the tables, and with which of its keys. Never quotes a secret."""

    def __init__(self, number: int, key: str, message: str) -> None:
        place = f"[{number + 1}].{key}" if key else f"[{number + 1}]"
        super().__init__(f"{place} {message}")
        self.number = number
        self.key = key

    def line(self, lines: Sequence[str]) -> int | None:
        """Where it stands in the file; of its table, where the key itself is not found."""
        headers = [at for at, line in enumerate(lines) if _HEADER.match(line)]
        if self.number >= len(headers):
            return None
        begin = headers[self.number]
        for at in range(begin + 1, len(lines)):
            if lines[at].lstrip().startswith("["):
                break
            if self.key and re.match(rf"\s*\"?{re.escape(self.key)}\"?\s*=", lines[at]):
                return at + 1
        return begin + 1


def routes_from(value: Any) -> tuple[Route, ...]:
    """The routes in the order of the file; a `BadRoute` or `BadValue` tells what is wrong."""
    if not isinstance(value, list) or not all(isinstance(table, dict) for table in value):
        raise BadValue("must be tables: write [[alerts.routes]] on a line of its own")
    return tuple(_route(number, table) for number, table in enumerate(value))


def _route(number: int, table: dict[str, Any]) -> Route:
    from stallwatch_alerts.routing import Route

    for key in table:
        if key not in _KEYS:
            near = difflib.get_close_matches(key, _KEYS, n=1)
            hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(_KEYS)}"
            raise BadRoute(number, key, f"is no key of a route; {hint}")
    lists = {key: _texts(number, key, table[key]) for key in _LISTS if key in table}
    for severity in lists.get("severities", ()):
        _severity(number, "severities", severity)
    minutes = table.get("escalate_minutes", 0)
    if isinstance(minutes, bool) or not isinstance(minutes, int | float) or not 0 <= minutes <= 10_080:
        raise BadRoute(number, "escalate_minutes", "must be a number of minutes, a week at most")
    if bool(minutes) != bool(lists.get("escalate_urls")):
        raise BadRoute(number, "escalate_minutes", "needs escalate_urls, and these need it")
    go_on = table.get("continue", False)
    if not isinstance(go_on, bool):
        raise BadRoute(number, "continue", "must be true or false")
    return Route(
        runs=lists.get("runs", ()),
        severities=lists.get("severities", ()),
        families=lists.get("families", ()),
        rules=lists.get("rules", ()),
        urls=lists.get("urls"),
        quiet=_quiet(number, table),
        escalate_after=60.0 * minutes,
        escalate_urls=lists.get("escalate_urls", ()),
        go_on=go_on,
    )


def _texts(number: int, key: str, value: Any) -> tuple[str, ...]:
    items = [value] if isinstance(value, str) else value
    if not isinstance(items, list) or not all(isinstance(item, str) and item.strip() for item in items):
        raise BadRoute(number, key, "must be a list of strings")
    return tuple(item.strip() for item in items)


def _severity(number: int, key: str, value: Any) -> str:
    if value not in _SEVERITIES:
        raise BadRoute(number, key, f"must be of {', '.join(_SEVERITIES)}")
    return str(value)


def _quiet(number: int, table: dict[str, Any]) -> QuietHours | None:
    from zoneinfo import ZoneInfo

    from stallwatch_alerts.routing import QuietHours

    if "quiet" not in table:
        for key in ("timezone", "quiet_but"):
            if key in table:
                raise BadRoute(number, key, 'needs quiet = "22:00-07:00"')
        return None
    found = _HOURS.fullmatch(str(table["quiet"]).strip())
    try:
        begin, end = (time(int(found[at]), int(found[at + 1])) for at in (1, 3)) if found else (None, None)
    except ValueError:
        begin = end = None
    if begin is None or end is None or begin == end:
        raise BadRoute(number, "quiet", 'must be two times of the day, such as "22:00-07:00"')
    if not isinstance(table.get("timezone"), str):
        raise BadRoute(number, "quiet", 'needs the time zone: timezone = "Asia/Shanghai"')
    try:
        zone = ZoneInfo(table["timezone"])
    except (ValueError, OSError, LookupError):
        raise BadRoute(number, "timezone", 'is no name of the IANA list, such as "Europe/Berlin"') from None
    return QuietHours(begin, end, zone, _severity(number, "quiet_but", table.get("quiet_but", "critical")))
