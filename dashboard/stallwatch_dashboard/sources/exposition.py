"""What an agent's /metrics page says, as plain readings."""

from __future__ import annotations

import json
from typing import NamedTuple

from prometheus_client.parser import text_string_to_metric_families

PREFIX = "stallwatch_"
MOST_READINGS = 50_000
# Buckets are many and no chart needs them: sum and count give the step time.
_LEFT_OUT = ("_bucket", "_created")


class Reading(NamedTuple):
    """One number of one scrape."""

    run: str
    metric: str
    rank: int | None
    labels: str  #: the labels other than run and rank, as sorted JSON; "" when there are none
    value: float


class NotMetrics(ValueError):
    """The page is not in the Prometheus text format."""


def parse(text: str) -> list[Reading]:
    """The readings of ours in a metrics page. Raises `NotMetrics` for anything else, such as an HTML page."""
    readings: list[Reading] = []
    try:
        for family in text_string_to_metric_families(text):
            if not family.name.startswith(PREFIX):
                continue
            for sample in family.samples:
                if sample.name.endswith(_LEFT_OUT):
                    continue
                readings.append(_reading(sample.name, dict(sample.labels), sample.value))
                if len(readings) > MOST_READINGS:
                    raise NotMetrics(f"more than {MOST_READINGS:,} numbers on one page")
    except NotMetrics:
        raise
    except (
        Exception
    ) as error:  # the parser raises whatever its tokens break: ValueError, IndexError, KeyError
        raise NotMetrics(f"not a metrics page: {type(error).__name__}") from error
    return readings


def _reading(name: str, labels: dict[str, str], value: float) -> Reading:
    run = labels.pop("run", "")
    rank = labels.pop("rank", "")
    rest = json.dumps(labels, sort_keys=True, ensure_ascii=False) if labels else ""
    return Reading(run, name, int(rank) if rank.isdecimal() else None, rest, float(value))
