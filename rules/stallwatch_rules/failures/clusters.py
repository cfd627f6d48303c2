"""Wordings that differ in a word or two, put together by Drain3 where it is installed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

ALIKE = 0.65  #: share of equal words that makes two lines one template
DEPTH = 4


def clusters(texts: Sequence[tuple[str, str]]) -> list[int]:
    """For each (level, masked text) the number of its cluster; the same number: the same template.

    Lines of different levels never share one. Without Drain3 (``pip install 'stallwatch[scale]'``) only equal
    texts do. The order decides what Drain3 makes of its lines, so callers sort them first.
    """
    numbers: dict[object, int] = {}
    trees: dict[str, Any] = {}
    drain = _drain() if len(texts) > 1 else None
    found = []
    for level, text in texts:
        name: object = text
        if drain is not None and text.split():
            if level not in trees:
                trees[level] = drain()
            cluster, _ = trees[level].add_log_message(text)
            name = cluster.cluster_id
        found.append(numbers.setdefault((level, name), len(numbers)))
    return found


def _drain() -> Any:
    """Makes trees; ``None`` without Drain3."""
    try:
        from drain3.drain import Drain  # here: it is slow to import, and most diagnoses need none
    except ImportError:
        return None
    return lambda: Drain(depth=DEPTH, sim_th=ALIKE, param_str="<*>")
