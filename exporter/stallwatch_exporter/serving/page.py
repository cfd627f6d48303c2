"""Render the page of a run's metrics from gauges and counters whose lines are prepared before a request.

``prometheus_client`` (0.26, ``exposition.py``) builds each line of a page anew, with its labels, which takes
several microseconds per line. Here a series keeps its line until its value changes, and then renders only the
value. The library still defines the format: it renders each line once, when the series is created. Decision
17 states the gain.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import Literal

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics.exposition import generate_latest as openmetrics
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

Kind = Literal["gauge", "counter"]
END = b"# EOF\n"  #: end of a page in the OpenMetrics format


class Metrics(Collector):
    """Collector of given metrics, for the library to render."""

    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        """Return the given metrics."""
        return self._metrics

    def page(self, *, open_metrics: bool) -> str:
        """Return the metrics' part of a page, without the end of the page."""
        text: bytes = openmetrics(self) if open_metrics else generate_latest(self)  # type: ignore[no-untyped-call]
        return text.removesuffix(END).decode()


class Series:
    """One value and its line on the page; only one thread may call `inc`."""

    __slots__ = ("_line", "_prefix", "_shown", "value")

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self.value = 0.0
        self._shown: float | None = None
        self._line = ""

    def set(self, value: float) -> None:
        """Set the value of the series."""
        self.value = float(value)

    def inc(self, amount: float = 1.0) -> None:
        """Increase the value of a counter. Raises `ValueError` for a negative amount."""
        if amount < 0:
            raise ValueError("a counter only counts upwards")
        self.value += amount

    def line(self) -> str:
        """Return the line of the series, including its newline."""
        value = self.value
        if value is not self._shown:  # not `!=`: 0.0 and -0.0 are shown differently, and NaN equals nothing
            shown = floatToGoString(value)  # type: ignore[no-untyped-call]
            self._line = f"{self._prefix} {shown}\n"
            self._shown = value
        return self._line


class Family(Collector):
    """A gauge or a counter with labels; the library uses ``collect``, while ``page`` is faster."""

    def __init__(self, kind: Kind, name: str, text: str, labels: Iterable[str]) -> None:
        """Set up without series; `name` excludes ``_total``, and `text` is the help text."""
        self._kind = kind
        self._name = name
        self._text = text
        self._labels = tuple(labels)
        self._series: dict[tuple[str, ...], Series] = {}
        self._heads = {way: Metrics([self._metric()]).page(open_metrics=way) for way in (False, True)}

    def forget(self, *values: str) -> None:
        """Remove the series with these label values, if it exists."""
        self._series.pop(values, None)

    def labels(self, *values: str) -> Series:
        """Return the series with these label values, which starts at 0."""
        series = self._series.get(values)
        if series is None:
            if len(values) != len(self._labels):
                raise ValueError(f"{self._name} has the labels {self._labels}, not {len(values)}")
            series = self._series[values] = Series(self._prefix(values))
        return series

    def clear(self) -> None:
        """Remove all series from the page."""
        self._series.clear()

    def describe(self) -> list[Metric]:
        """Return the family without its series, so that no other family can use its name."""
        return [self._metric()]

    def collect(self) -> Iterator[Metric]:
        """Yield the family as a metric of the library."""
        metric = self._metric()
        for values, series in list(self._series.items()):
            self._add(metric, values, series.value)
        yield metric

    def page(self, *, open_metrics: bool) -> str:
        """Return the family's part of a page; the formats differ only in its head."""
        return self._heads[open_metrics] + "".join([series.line() for series in list(self._series.values())])

    def _metric(self) -> Metric:
        return Metric(self._name, self._text, self._kind)

    def _add(self, metric: Metric, values: tuple[str, ...], value: float) -> None:
        suffix = "_total" if self._kind == "counter" else ""
        metric.add_sample(self._name + suffix, dict(zip(self._labels, values, strict=True)), value)

    def _prefix(self, values: tuple[str, ...]) -> str:
        metric = self._metric()
        self._add(metric, values, 0.0)
        rendered = Metrics([metric]).page(open_metrics=False)
        return rendered.removeprefix(self._heads[False]).removesuffix(" 0.0\n")


class RunRegistry(CollectorRegistry):
    """Registry that renders its families itself and leaves other collectors to the library.

    Creation times are left out, and the last metric is the duration of the collection.
    """

    def __init__(self, run: str) -> None:
        super().__init__(auto_describe=True)
        self.run = run
        self._in_order: list[Collector] = []

    def register(self, collector: Collector) -> None:
        """Add a collector; the page shows collectors in order of registration."""
        super().register(collector)
        self._in_order.append(collector)

    def family(self, kind: Kind, name: str, text: str, labels: Iterable[str]) -> Family:
        """Create, register and return a gauge or a counter."""
        made = Family(kind, name, text, labels)
        self.register(made)
        return made

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics, for the library's own renderers."""
        start = time.perf_counter()
        for metric in super().collect():
            yield _without_creation(metric)
        yield self._took(start)

    def page(self, *, open_metrics: bool = False) -> bytes:
        """Return the same bytes as the library's ``generate_latest`` for this registry, in less time."""
        start = time.perf_counter()
        parts = [
            collector.page(open_metrics=open_metrics)
            if isinstance(collector, Family)
            else Metrics(map(_without_creation, collector.collect())).page(open_metrics=open_metrics)
            for collector in self._in_order
        ]
        parts.append(Metrics([self._took(start)]).page(open_metrics=open_metrics))
        return "".join(parts).encode() + (END if open_metrics else b"")

    def _took(self, start: float) -> Metric:
        took = GaugeMetricFamily(
            "stallwatch_scrape_duration_seconds",
            "How long it took to collect these metrics.",
            labels=["run"],
        )
        took.add_metric([self.run], time.perf_counter() - start)
        return took


def _without_creation(metric: Metric) -> Metric:
    metric.samples = [sample for sample in metric.samples if not sample.name.endswith("_created")]
    return metric
