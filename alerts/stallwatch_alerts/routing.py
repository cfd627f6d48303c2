"""Route incidents: choose the chats to notify, the time of notification, and the chats for escalations.

Routes are checked in order, up to the first matching route that does not set `go_on`. If no route matches,
the chats of ``[alerts] urls`` are notified. A mistake in a route must not suppress notifications. Therefore,
every incident that a broken route might match is sent to every chat.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, time, timedelta
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

import msgspec

from stallwatch_exporter.incident import RANKS

if TYPE_CHECKING:
    from zoneinfo import ZoneInfo


class QuietHours(msgspec.Struct, frozen=True):
    """A daily time range in the users' time zone. The range can include midnight."""

    begin: time
    end: time
    zone: ZoneInfo
    but: str = "critical"  #: incidents of at least this severity are sent during quiet hours

    def until(self, now: float) -> float:
        """Return the Unix time when the current quiet hours end, or 0 outside quiet hours."""
        here = datetime.fromtimestamp(now, self.zone)
        for day in (-1, 0):
            begins = datetime.combine(here.date() + timedelta(days=day), self.begin, self.zone)
            ends_on = begins.date() + timedelta(days=self.end <= self.begin)
            ends = datetime.combine(ends_on, self.end, self.zone)
            # Python compares times of the same time zone by their clock readings. An hour occurs twice when
            # summer time ends, so the Unix times are also compared.
            if begins <= here < ends and now < ends.timestamp():
                return ends.timestamp()
        return 0.0


class Route(msgspec.Struct, frozen=True):
    """A route, which applies to incidents that match all of its conditions."""

    runs: tuple[str, ...] = ()  #: run names; can contain the wildcards * and ?
    severities: tuple[str, ...] = ()
    families: tuple[str, ...] = ()  #: families of rule pages, such as "memory"
    rules: tuple[str, ...] = ()  #: rule IDs; can contain the wildcards * and ?
    urls: tuple[str, ...] | None = None  #: chats to notify instead of [alerts] urls; the URLs are secrets
    quiet: QuietHours | None = None
    #: seconds to wait for an acknowledgement before the escalation; 0 disables escalations
    escalate_after: float = 0.0
    escalate_urls: tuple[str, ...] = ()  #: chats for escalations; the URLs are secrets
    go_on: bool = False
    #: True if a part of the route is unreadable. The readable conditions apply, and every chat is notified.
    broken: bool = False

    def __repr__(self) -> str:
        return f"Route({', '.join((*self.runs, *self.severities, *self.families, *self.rules))})"

    def fits(self, run: str, severity: str, family: str, rule: str) -> bool:
        """Return whether an incident with these properties matches the route."""
        return (
            _matches(self.runs, run)
            and (not self.severities or severity in self.severities)
            and (not self.families or family in self.families)
            and _matches(self.rules, rule)
        )


class RoutedChat(msgspec.Struct, frozen=True):
    """A chat to notify of an incident, and the earliest time for the notification."""

    url: str
    not_before: float = 0.0
    escalation: bool = False
    waited: float = 0.0  #: seconds without an acknowledgement until this escalation


def routed_chats(
    urls: Sequence[str], routes: Sequence[Route], run: str, severity: str, family: str, rule: str, now: float
) -> list[RoutedChat]:
    """Return each chat to notify of an incident, with the earliest time that its routes allow."""
    found: dict[tuple[str, bool], RoutedChat] = {}
    for route in routes:
        if not route.fits(run, severity, family, rule):
            continue
        if route.broken:
            here = [RoutedChat(url) for url in every_chat(urls, routes)]
        else:
            here = _routed_chats_of(route, urls, severity, now)
        for chat in here:
            known = found.get((chat.url, chat.escalation))
            if known is None or chat.not_before < known.not_before:
                found[chat.url, chat.escalation] = chat
        if not (route.go_on or route.broken):
            break
    else:
        for url in urls:
            found[url, False] = RoutedChat(url)
    return list(found.values())


def every_chat(urls: Sequence[str], routes: Sequence[Route]) -> tuple[str, ...]:
    """Return all chats for ordinary notifications. If there are none, return the escalation chats."""
    found = dict.fromkeys(urls)
    for route in routes:
        found.update(dict.fromkeys(route.urls or ()))
    return tuple(found) or all_urls(urls, routes)


def all_urls(urls: Sequence[str], routes: Sequence[Route]) -> tuple[str, ...]:
    """Return all configured chats, including the chats of routes and escalations."""
    found = dict.fromkeys(urls)
    for route in routes:
        found.update(dict.fromkeys((*(route.urls or ()), *route.escalate_urls)))
    return tuple(found)


def _routed_chats_of(route: Route, urls: Sequence[str], severity: str, now: float) -> list[RoutedChat]:
    not_before = 0.0
    if route.quiet is not None and RANKS.get(severity, 0) < RANKS[route.quiet.but]:
        not_before = route.quiet.until(now)
    found = [RoutedChat(url, not_before) for url in (urls if route.urls is None else route.urls)]
    if route.escalate_after and severity == "critical":
        due = now + route.escalate_after
        found += [RoutedChat(url, due, True, route.escalate_after) for url in route.escalate_urls]
    return found


def _matches(patterns: Sequence[str], name: str) -> bool:
    return not patterns or any(fnmatchcase(name, pattern) for pattern in patterns)
