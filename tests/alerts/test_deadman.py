"""The switch is pinged over real HTTP while the relay receives the watchdog, and no longer."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from stallwatch_alerts.deadman import Deadman, DeadmanSink, Signal
from stallwatch_exporter.watching.incidents import Heartbeat

PING = "/ping/5ecret-uu1d"


def test_switch_receives_start_ok_and_the_ending(switch: Any) -> None:
    deadman = Deadman(switch.url, lambda: "", seconds=3600)
    switch.wait_for(2)
    deadman.close("fail")
    assert switch.paths == [f"{PING}/start?create=1", f"{PING}?create=1", f"{PING}/fail?create=1"]


def test_pings_stop_while_monitoring_is_blind(switch: Any) -> None:
    said: list[str] = []
    blind = [""]
    asked = threading.Semaphore(0)

    def look() -> str:
        asked.release()
        return blind[0]

    deadman = Deadman(switch.url, look, seconds=0.01, report=said.append)
    switch.wait_for(4)
    blind[0] = "the database is gone"
    while asked.acquire(blocking=False):
        pass
    for _ in range(50):  # some checks at the same time as a ping, and many without one
        asked.acquire()
    before = len(switch.paths)
    for _ in range(20):
        asked.acquire()
    assert len(switch.paths) == before
    assert said == ["no ping is sent to the dead man's switch: the database is gone"]
    blind[0] = ""
    switch.wait_for(before + 1)
    deadman.close(None)


def test_failing_check_counts_as_blind(switch: Any) -> None:
    asked = threading.Semaphore(0)

    def look() -> str:
        asked.release()
        raise RuntimeError("no")

    deadman = Deadman(switch.url, look, seconds=0.01)
    for _ in range(5):
        asked.acquire()
    deadman.close(None)
    assert switch.paths == [f"{PING}/start?create=1"]


def test_failing_switch_is_reported_once_without_its_secret(switch: Any) -> None:
    switch.status = 500
    said: list[str] = []
    deadman = Deadman(switch.url, lambda: "", seconds=0.01, report=said.append)
    switch.wait_for(5)
    deadman.close(None)
    (line,) = said
    assert "cannot be reached" in line and "500" in line and "5ecret" not in line


class Pings:
    def __init__(self) -> None:
        self.signals: list[Signal] = []

    def __call__(self, url: str, signal: Signal) -> None:
        self.signals.append(signal)


def test_agent_without_signs_of_life_is_blind(stall: object) -> None:
    now = [0.0]
    sink = DeadmanSink("https://x.example/u", ping=Pings(), seconds=3600, clock=lambda: now[0])
    now[0] = 20.0
    assert sink.blind() == ""
    now[0] = 40.0
    assert "40 s" in sink.blind()
    heart = Heartbeat([sink, lambda incident: None])
    heart.beat(0, 0)
    assert sink.blind() == ""
    heart.beat(1, 0)
    assert "error occurred" in sink.blind()
    heart.beat(1, 9)
    assert "not read" in sink.blind()
    heart.beat(1, 9)
    assert sink.blind() == ""
    sink.close(120)


@pytest.mark.parametrize(("kind", "last"), [("ended", "fail"), ("stall", "ok")])
def test_last_ping_contains_the_ending_of_the_run(stall: object, kind: str, last: Signal) -> None:
    pings = Pings()
    sink = DeadmanSink("https://x.example/u", ping=pings, seconds=3600)
    sink(stall(kind=kind))  # type: ignore[operator]
    sink.close(120)
    assert pings.signals == ["start", "ok", last]
