from __future__ import annotations

from datetime import datetime, time
from zoneinfo import ZoneInfo

import pytest

from stallwatch_alerts.routing import QuietHours, Route, RoutedChat, all_urls, routed_chats

SHANGHAI = ZoneInfo("Asia/Shanghai")
BERLIN = ZoneInfo("Europe/Berlin")
NIGHT = QuietHours(time(22), time(7), SHANGHAI)
NOW = datetime(2026, 11, 21, 12, tzinfo=SHANGHAI).timestamp()


def at(hour: int, day: int = 21, zone: ZoneInfo = SHANGHAI, month: int = 11) -> float:
    return datetime(2026, month, day, hour, tzinfo=zone).timestamp()


def where(
    routes: list[Route], *, run: str = "sft", severity: str = "critical", now: float = NOW
) -> list[RoutedChat]:
    return routed_chats(["default"], routes, run, severity, "memory", "cuda-oom", now)


@pytest.mark.parametrize(
    ("now", "until"),
    [(at(21), 0.0), (at(22), at(7, 22)), (at(3), at(7)), (at(7), 0.0), (at(12), 0.0)],
)
def test_quiet_hours_can_include_midnight(now: float, until: float) -> None:
    assert NIGHT.until(now) == until


def test_quiet_hours_follow_daylight_saving_time() -> None:
    """On 25 October 2026, the night in Berlin is an hour longer."""
    night = QuietHours(time(23), time(6), BERLIN)
    begin = at(23, 24, BERLIN, 10)
    assert night.until(begin) - begin == 8 * 3600


@pytest.mark.parametrize(("fold", "waits"), [(0, 900.0), (1, 0.0)])
def test_quiet_hours_that_end_in_a_repeated_hour_end_only_once(fold: int, waits: float) -> None:
    """On 25 October 2026, the clocks in Berlin show 02:30 twice; the quiet hours end after the first time."""
    night = QuietHours(time(22), time(2, 45), BERLIN)
    now = datetime(2026, 10, 25, 2, 30, tzinfo=BERLIN, fold=fold).timestamp()
    assert night.until(now) == (now + waits if waits else 0.0)


@pytest.mark.parametrize(
    "route",
    [
        Route(runs=("s*",), urls=("x",)),
        Route(severities=("critical",), urls=("x",)),
        Route(families=("memory", "network"), urls=("x",)),
        Route(rules=("cuda-*",), urls=("x",)),
        Route(urls=("x",)),
    ],
)
def test_matching_route_selects_the_chats(route: Route) -> None:
    assert where([route, Route(urls=("never",))]) == [RoutedChat("x")]


@pytest.mark.parametrize(
    "route",
    [
        Route(runs=("dpo",), urls=("x",)),
        Route(severities=("info",), urls=("x",)),
        Route(families=("network",), urls=("x",)),
        Route(rules=("cuda",), urls=("x",)),
        Route(runs=("sft",), families=("network",), urls=("x",)),
    ],
)
def test_route_that_does_not_match_is_skipped(route: Route) -> None:
    assert where([route]) == [RoutedChat("default")]


def test_route_without_urls_uses_the_defaults_and_an_empty_list_sends_nothing() -> None:
    assert where([Route(runs=("sft",))]) == [RoutedChat("default")]
    assert where([Route(runs=("sft",), urls=())]) == []


def test_continuing_routes_add_chats_without_duplicates() -> None:
    routes = [Route(urls=("x", "default"), go_on=True)]
    assert {stop.url for stop in where(routes)} == {"x", "default"}
    assert len(where([*routes, Route(urls=("x",))])) == 2


def test_warnings_wait_for_the_end_of_quiet_hours() -> None:
    routes = [Route(quiet=NIGHT)]
    assert where(routes, severity="warning", now=at(23)) == [RoutedChat("default", at(7, 22))]
    assert where(routes, severity="critical", now=at(23)) == [RoutedChat("default")]
    assert where(routes, severity="warning", now=at(12)) == [RoutedChat("default")]


def test_only_critical_incidents_are_escalated() -> None:
    routes = [Route(escalate_after=600, escalate_urls=("boss",))]
    assert where(routes) == [RoutedChat("default"), RoutedChat("boss", NOW + 600, True, 600)]
    assert where(routes, severity="warning") == [RoutedChat("default")]


def test_urls_of_all_routes_are_listed_without_duplicates() -> None:
    routes = [Route(urls=("a",), escalate_urls=("b",)), Route(urls=("a",))]
    assert all_urls(["c", "c"], routes) == ("c", "a", "b")
