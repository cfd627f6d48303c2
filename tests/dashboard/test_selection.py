"""Which runs are shown, in which order, and how the address says it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from stallwatch_dashboard.overview import RunRow
from stallwatch_dashboard.selection import ORDERS, Selection
from stallwatch_exporter.incident import Incident

NOW = 1000.0
ROWS = [
    RunRow("slow", "degraded", "node2", ("torchrun", "sft.py"), 50, 100, 2.0, 4.0, 1.0, started_at=10.0),
    RunRow("Fast", "training", "node1", ("torchrun", "dpo.py"), 50, 1000, 0.5, 1.0, 1.0, started_at=20.0),
    RunRow("new", "starting", "node1", started_at=30.0),
]


def names(selection: Selection) -> list[str]:
    return [row.run for row in selection.of(ROWS, NOW)]


def test_everything_in_the_order_that_it_came_in() -> None:
    assert names(Selection()) == ["slow", "Fast", "new"]


def test_all_words_must_be_found_somewhere(make_incident: Callable[..., Incident]) -> None:
    assert names(Selection(search="NODE1 dpo")) == ["Fast"]
    assert names(Selection(search="node1 sft")) == []
    stuck = RunRow("stuck", "stalled", open_incidents=(make_incident(),))
    assert Selection(search="silent-hang").of([*ROWS, stuck], NOW) == [stuck]


def test_states_are_alternatives() -> None:
    assert names(Selection(states=("degraded", "starting"))) == ["slow", "new"]


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        ("run", ["Fast", "new", "slow"]),
        ("started", ["new", "Fast", "slow"]),
        ("step_time", ["slow", "Fast", "new"]),
        ("left", ["Fast", "slow", "new"]),
        ("loss", ["slow", "Fast", "new"]),
    ],
)
def test_orders(order: str, expected: list[str]) -> None:
    assert names(Selection(order=order)) == expected


@pytest.mark.parametrize("order", ORDERS)
def test_every_order_survives_its_address(order: str) -> None:
    chosen = Selection(("stalled", "training"), "a, b&c=d", order)
    assert Selection.from_query(chosen.to_query()).of(ROWS, NOW) == chosen.of(ROWS, NOW)
    assert set(Selection.from_query(chosen.to_query()).states) == {"stalled", "training"}


def test_an_address_that_says_nonsense_shows_everything() -> None:
    assert Selection.from_query({"state": "on-fire,", "sort": "moon", "lang": "zh"}) == Selection()
    assert len(Selection.from_query({"q": "x" * 10_000}).search) == 200


def test_goodput_headroom_and_time_left_of_a_row() -> None:
    row = RunRow(
        "r",
        "training",
        step=50,
        total_steps=100,
        step_seconds=2.0,
        stepping_seconds=450.0,
        host_memory_bytes=6.0,
        host_memory_limit_bytes=10.0,
        invalidations=25,
        started_at=NOW - 900,
    )
    assert row.seconds_left() == 100.0
    assert row.goodput(NOW) == 0.5
    assert row.headroom() == 4.0
    assert row.invalidations_per_step() == 0.5
    assert RunRow("r", "finished").seconds_left() is None and RunRow("r", "starting").goodput(NOW) is None
