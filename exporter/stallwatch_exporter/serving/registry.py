"""Define the registry for the metrics of a run."""

from __future__ import annotations

import time
from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric


class RunRegistry(CollectorRegistry):
    """Registry of the metrics of one run.

    Creation times are omitted, and the last metric is the duration of the collection.
    """

    def __init__(self, run: str) -> None:
        super().__init__(auto_describe=True)
        self.run = run

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics."""
        start = time.perf_counter()
        for metric in super().collect():
            metric.samples = [sample for sample in metric.samples if not sample.name.endswith("_created")]
            yield metric
        took = GaugeMetricFamily(
            "stallwatch_scrape_duration_seconds",
            "How long it took to collect these metrics.",
            labels=["run"],
        )
        took.add_metric([self.run], time.perf_counter() - start)
        yield took
