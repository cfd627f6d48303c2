"""Offsets between hosts' clocks, from events that several hosts logged at once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stallwatch_rules.diagnosis.clocks import MATTERS, Event, clocks_ahead

STEPS = range(1, 9)


def events(clocks: dict[str, float], steps: range = STEPS) -> list[Event]:
    """Return steps of three seconds, which hosts finish within a tenth of a second of each other."""
    return [
        Event(("step", step), host, 1000.0 + 3 * step + ahead + 0.01 * ((step * 7 + number) % 11))
        for number, (host, ahead) in enumerate(clocks.items())
        for step in steps
    ]


@pytest.mark.parametrize(
    ("clocks", "ahead"),
    [
        ({"n0": 0, "n1": 0, "n2": 0}, {}),
        ({"n0": 0, "n1": 0, "n2": 41}, {"n2": 41}),
        ({"n0": 0, "n1": 0, "n2": -41}, {"n2": -41}),
        ({"n0": 0, "n1": 41}, {"n1": 41}),  # of two hosts, one counts as right
        ({"n0": 0, "n1": 1.5, "n2": 0}, {}),  # too small an offset to change anything
        ({"n0": 0, "n1": 8 * 3600, "n2": 0, "n3": -30}, {"n1": 8 * 3600, "n3": -30}),
    ],
)
def test_clock_offset_follows_from_common_steps(clocks: dict[str, float], ahead: dict[str, float]) -> None:
    assert clocks_ahead(events(clocks)) == pytest.approx(ahead, abs=0.1)


def test_drifting_hosts_have_no_known_offset() -> None:
    slower = [Event(("step", step), "n2", 1000.0 + 30 * step) for step in STEPS]
    assert clocks_ahead([*events({"n0": 0, "n1": 0}), *slower]) == {}


def test_one_common_event_is_not_enough() -> None:
    assert clocks_ahead(events({"n0": 0, "n1": 0, "n2": 41}, range(1, 2))) == {}


def test_offset_is_unknown_without_common_events() -> None:
    assert clocks_ahead([*events({"n0": 0}), *events({"n1": 41}, range(20, 30))]) == {}


@given(
    st.integers(3, 12),
    st.floats(-90_000, 90_000).filter(lambda by: abs(by) > MATTERS + 1),
    st.integers(0, 11),
)
def test_single_wrong_clock_is_found(hosts: int, by: float, which: int) -> None:
    wrong = f"n{which % hosts}"
    clocks = {f"n{number}": by if f"n{number}" == wrong else 0.0 for number in range(hosts)}
    assert clocks_ahead(events(clocks)) == pytest.approx({wrong: by}, abs=0.2)
