"""The endpoint outlives the command until a scraper has read the end, and only for a short time."""

from __future__ import annotations

import threading
import urllib.request
from collections.abc import Iterable
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Gauge

from stallwatch_exporter.serving.server import Scrapes, serve
from stallwatch_exporter.settings import ExporterSettings

SCRAPER = {"X-Prometheus-Scrape-Timeout-Seconds": "10"}


def answer(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
    start_response("200 OK", [])
    return [b"metrics"]


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def scraped_at(*times: float, header: bool = True) -> tuple[Scrapes, Clock]:
    clock = Clock()
    scrapes = Scrapes(answer, clock)
    environ = {"HTTP_X_PROMETHEUS_SCRAPE_TIMEOUT_SECONDS": "10"} if header else {}
    for clock.now in times:
        assert b"".join(scrapes(environ, lambda *_: None)) == b"metrics"
    return scrapes, clock


def test_unscraped_server_does_not_wait() -> None:
    scrapes, _ = scraped_at()
    assert scrapes.patience(30) == 0
    assert not scrapes.wait_for_all(30)


def test_requests_of_people_do_not_count() -> None:
    scrapes, _ = scraped_at(100, 101, 102, header=False)
    assert scrapes.patience(30) == 0


def test_wait_follows_the_scrape_interval() -> None:
    scrapes, clock = scraped_at(100, 105, 110)
    clock.now = 112
    assert scrapes.patience(30) == pytest.approx(5 * 1.5 + 1 - 2)
    assert scrapes.patience(3) == 3
    clock.now = 125
    assert scrapes.patience(30) == 0  # the scraper no longer comes


def test_single_scrape_shows_no_interval() -> None:
    scrapes, _ = scraped_at(100)
    assert scrapes.patience(30) == 30


@pytest.mark.parametrize(
    ("dashboard", "prometheus", "seconds"),
    [((100, 101), (), 2.5), ((100, 101), (99, 101), 4.0), ((), (99, 101), 4.0), ((), (), 0.0)],
)
def test_wait_lasts_until_each_scraper_has_read_the_end(
    dashboard: tuple[float, ...], prometheus: tuple[float, ...], seconds: float
) -> None:
    clock = Clock()
    scrapes = Scrapes(answer, clock)
    keys = {"HTTP_X_STALLWATCH_DASHBOARD": dashboard, "HTTP_X_PROMETHEUS_SCRAPE_TIMEOUT_SECONDS": prometheus}
    for key, times in keys.items():
        for clock.now in times:
            list(scrapes({key: "1"}, lambda *_: None))
    clock.now = 101
    assert scrapes.patience(30) == pytest.approx(seconds)
    for key, times in keys.items():
        assert not scrapes.wait_for_all(0)
        if times:
            clock.now += 0.5
            list(scrapes({key: "1"}, lambda *_: None))


def get(url: str, headers: dict[str, str]) -> str:
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=120) as response:
        return str(response.read().decode())


def test_last_value_is_scraped_before_the_endpoint_closes() -> None:
    registry = CollectorRegistry()
    gauge = Gauge("ended", "Whether it ended.", registry=registry)
    server = serve(registry, ExporterSettings(port=0), pytest.fail)
    assert server is not None
    assert "ended 0.0" in get(server.url, SCRAPER)
    gauge.set(1)
    seen: list[bool] = []
    lingering = threading.Thread(target=lambda: seen.append(server.linger(60)))
    lingering.start()
    while lingering.is_alive():  # scrapes until the endpoint ends
        assert "ended 1.0" in get(server.url, SCRAPER)
        lingering.join(0.01)
    server.close()
    assert seen == [True]
