"""The fast metrics page equals the library's byte for byte, in each format for scrapers."""

from __future__ import annotations

import gzip
import re
from typing import Any

import pytest
from everymetric import full
from prometheus_client import generate_latest, make_wsgi_app
from prometheus_client.openmetrics.exposition import generate_latest as openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from stallwatch_exporter.rings.reader import Record
from stallwatch_exporter.serving.metrics import RunMetrics
from stallwatch_exporter.serving.page import Family, RunRegistry
from stallwatch_exporter.serving.server import Endpoint

# Default Accept header of Prometheus 3, and of 2.x without scrape_protocols.
PROMETHEUS = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,"
    "application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,"
    "text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)
PLAIN = "text/plain;version=0.0.4"


def untimed(page: bytes) -> bytes:
    """Return the page without the duration of the scrape."""
    return re.sub(rb"(?m)^(stallwatch_+scrape_+duration_+seconds\{.*\}) .*$", rb"\1", page)


def odd() -> RunMetrics:
    """Return metrics of a run whose name needs escaping, and with numbers of every format."""
    metrics = RunMetrics('a "run"\\with\nlines, {and} 中文')
    numbers = (0.0, -0.0, 1.0, -1.5, 1e-7, 123456.0, 1e6, 1234567.5, 1e21, float("inf"), float("-inf"))
    for rank, number in enumerate((*numbers, float("nan"))):
        metrics.hooked(Record(rank, 1, 1.0, {"loss": number, "step": 3.0}))
    return metrics


@pytest.mark.parametrize("made", [full, odd], ids=["every-series", "odd-numbers"])
def test_the_page_is_the_librarys(made: Any) -> None:
    registry = made().registry
    assert untimed(registry.page()) == untimed(generate_latest(registry))
    assert untimed(registry.page(open_metrics=True)) == untimed(openmetrics(registry))
    list(text_string_to_metric_families(registry.page(open_metrics=True).decode()))  # this parser is strict


def test_the_page_follows_the_values() -> None:
    metrics = full()
    for number in (2.0, 2.0, float("nan"), 0.0, -0.0, 1e9):
        metrics.hooked(Record(0, 1, 1.0, {"loss": number, "out_of_memory": 7.0}))
        assert untimed(metrics.registry.page()) == untimed(generate_latest(metrics.registry))


def test_families_keep_to_what_they_are() -> None:
    registry = RunRegistry("sft-1")
    family = registry.family("counter", "wins", "Won.", ("run",))
    with pytest.raises(ValueError, match="upwards"):
        family.labels("sft-1").inc(-1)
    with pytest.raises(ValueError, match="labels"):
        family.labels("sft-1", "2")
    with pytest.raises(ValueError, match="Duplicated"):
        registry.register(Family("counter", "wins", "Won twice.", ("run",)))


def asked(app: Any, **environ: str) -> tuple[str, dict[str, str], bytes]:
    seen: list[Any] = []
    given = {"REQUEST_METHOD": "GET", "PATH_INFO": "/metrics", **environ}
    body = b"".join(app(given, lambda status, headers: seen.append((status, dict(headers)))))
    ((status, headers),) = seen
    return status, headers, body


@pytest.mark.parametrize(
    "environ",
    [
        {"HTTP_ACCEPT": PROMETHEUS},
        {"HTTP_ACCEPT": PLAIN},
        {"HTTP_ACCEPT": "text/plain;version=1.0.0;escaping=dots"},
        {"HTTP_ACCEPT": "application/openmetrics-text;version=2.0.0"},
        {"HTTP_ACCEPT": "application/openmetrics-text"},
        {"HTTP_ACCEPT": "*/*"},
        {"HTTP_ACCEPT": ""},
        {"HTTP_ACCEPT": PLAIN, "QUERY_STRING": "name[]=stallwatch_loss"},
        {"HTTP_ACCEPT": PLAIN, "REQUEST_METHOD": "OPTIONS"},
        {"HTTP_ACCEPT": PLAIN, "REQUEST_METHOD": "POST"},
        {"HTTP_ACCEPT": PLAIN, "PATH_INFO": "/favicon.ico"},
    ],
    ids=lambda environ: " ".join(environ.values()).replace("/", "-"),
)
def test_each_request_is_answered_as_the_library_does(environ: dict[str, str]) -> None:
    registry = full().registry
    library = make_wsgi_app(registry)
    ours, theirs = asked(Endpoint(library, registry), **environ), asked(library, **environ)
    assert ours[:2] == theirs[:2]
    assert untimed(ours[2]) == untimed(theirs[2])
    packed = asked(Endpoint(library, registry), HTTP_ACCEPT_ENCODING="gzip", **environ)
    if packed[1].get("Content-Encoding") == "gzip":
        assert untimed(gzip.decompress(packed[2])) == untimed(ours[2])


@pytest.mark.parametrize("accept", [PROMETHEUS, PLAIN, ""])
def test_what_scrapers_ask_for_takes_the_quick_way(accept: str) -> None:
    def library(*_: Any) -> list[bytes]:
        raise AssertionError("the library was asked")

    assert asked(Endpoint(library, full().registry), HTTP_ACCEPT=accept)[0] == "200 OK"
