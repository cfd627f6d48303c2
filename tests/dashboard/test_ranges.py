"""Past ranges are not queried again."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from stallwatch_dashboard.data.promql import Ranges

NOW = 1_795_000_000.0


class Server:
    """Server that answers with the time itself, and records the number of queried times."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.gone = False

    def __call__(self, question: str, start: float, end: float, width: float) -> list[Any] | None:
        moments = [start + n * width for n in range(int((end - start) // width) + 1)]
        self.asked.append(len(moments))
        return (
            None
            if self.gone
            else [{"metric": {"run": question}, "values": [[at, str(at)] for at in moments]}]
        )


@pytest.mark.parametrize("hours", [0.1, 1, 24])
def test_refresh_queries_only_new_points(hours: float) -> None:
    server, whole, start = Server(), Server(), NOW - 3600 * hours
    ranges = Ranges(server)
    for second in range(0, 600, 2):
        found = ranges.points("loss", start, NOW + second, 400)
        (again,) = Ranges(whole).points("loss", start, NOW + second, 400).values()
        ((times, values),) = found.values()
        assert np.array_equal(times, again[0]) and np.array_equal(times, values)
        assert 150 <= len(times) <= 401
    assert sum(server.asked) < 0.25 * sum(whole.asked)
    assert sorted(server.asked)[len(server.asked) // 2] <= 62


def test_missed_points_are_queried_after_an_outage() -> None:
    server = Server()
    ranges = Ranges(server)
    before = ranges.points("loss", NOW - 300, NOW, 400)
    server.gone = True
    assert ranges.points("loss", NOW - 300, NOW + 60, 400) == {}
    server.gone = False
    ((times, _),) = ranges.points("loss", NOW - 300, NOW + 90, 400).values()
    assert len(times) == len(next(iter(before.values()))[0]) + 90


def test_repeated_query_is_sent_once() -> None:
    server = Server()
    ranges = Ranges(server)
    for later in (0.0, 0.01, 0.4, 0.6, 0.9):
        ranges.points("loss", NOW - 300, NOW + later, 400)
    assert len(server.asked) == 2


def test_changed_range_or_clock_queries_everything() -> None:
    server = Server()
    ranges = Ranges(server)
    ranges.points("loss", NOW - 300, NOW, 400)
    ranges.points("loss", NOW - 200, NOW, 400)
    ranges.points("loss", NOW - 200, NOW - 50, 400)
    ranges.points("other", NOW - 300, NOW, 400)
    assert server.asked == [301, 201, 151, 301]
    assert ranges.points("loss", NOW - 0.25, NOW - 0.125, 400) == {}
