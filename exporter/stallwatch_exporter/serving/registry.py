"""All metrics of one run, and the page that shows them."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from stallwatch_exporter.serving.series import END, Family, Kind, Metrics


class RunRegistry(CollectorRegistry):
    """A registry that renders families by itself and leaves the rest to the library.

    Creation times are left out, and the last metric says how long the collection took.
    """

    def __init__(self, run: str) -> None:
        super().__init__(auto_describe=True)
        self._run = run
        self._in_order: list[Collector] = []

    def register(self, collector: Collector) -> None:
        """Take in a collector. Its place on the page is where it came."""
        super().register(collector)
        self._in_order.append(collector)

    def family(self, kind: Kind, name: str, text: str, labels: Iterable[str]) -> Family:
        """A new gauge or counter."""
        made = Family(kind, name, text, labels)
        self.register(made)
        return made

    def collect(self) -> Iterator[Metric]:
        """All metrics, for the library's own ways to render them."""
        start = time.perf_counter()
        for metric in super().collect():
            yield _without_creation(metric)
        yield self._took(start)

    def page(self, *, open_metrics: bool = False) -> bytes:
        """What ``generate_latest`` of the library makes of this registry, byte by byte, in less time."""
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
        took.add_metric([self._run], time.perf_counter() - start)
        return took


def _without_creation(metric: Metric) -> Metric:
    metric.samples = [sample for sample in metric.samples if not sample.name.endswith("_created")]
    return metric
