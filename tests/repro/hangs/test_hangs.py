"""Real hangs of one of three ranks: the stall opens in time, and names the rank and its activity."""

from __future__ import annotations

import fcntl
import importlib.util
import os
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from watched_ranks import LATE, Ranks, Watch

from stallwatch_exporter.incident import Incident
from stallwatch_rules.locale import render
from stallwatch_rules.stacks.sentences import sentence

pytestmark = [
    pytest.mark.repro,
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed"),
]
WAITING = r"Ranks 0, 2 wait in all_reduce \(stuck_ranks\.py:\d+ in train, \d+ collectives joined\); rank 1 "


@contextmanager
def held(ranks: Ranks, hang: str, rank: int = 1) -> Iterator[None]:
    ranks.hold(hang, rank)
    try:
        yield
    finally:
        ranks.let_go(hang, rank)


@contextmanager
def stopped(ranks: Ranks, rank: int = 1) -> Iterator[None]:
    try:
        ranks.stop(rank)
        yield
    finally:
        os.kill(ranks.pids[rank], signal.SIGCONT)


@contextmanager
def file_lock(ranks: Ranks) -> Iterator[None]:
    with (ranks.folder / "cache.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with held(ranks, "flock"):
            yield


@contextmanager
def native_call(ranks: Ranks) -> Iterator[None]:
    ranks.hold("native")
    try:
        yield
    finally:
        ranks.let_go("native")
        with (ranks.folder / "native.pipe").open("r+b", buffering=0) as pipe:
            pipe.write(b"x")


@contextmanager
def stuck_save(ranks: Ranks) -> Iterator[None]:
    ranks.hold("save")
    try:
        yield
    finally:
        ranks.let_go("save")
        ranks.drain("save.pipe")


def checked(watch: Watch, stall: Incident, odd: int, says: str) -> None:
    """Check that the stall opened soon after its threshold, and that it names the right rank."""
    first = next(item for item in watch.stalls if item.id == stall.id)
    assert first.stalled_seconds is not None and first.threshold_seconds is not None
    assert first.stalled_seconds <= first.threshold_seconds + LATE
    stacks = stall.stacks
    assert stacks is not None
    assert stacks.odd == [odd] and stall.rank == odd, render(sentence(stacks))
    assert re.fullmatch(says, render(sentence(stacks))), render(sentence(stacks))
    assert stall.primary is not None and stall.primary.rank == odd
    assert render(stall.primary.evidence[0]) == render(sentence(stacks))
    kept = (watch.folder / stacks.file).read_text()
    assert render(sentence(stacks)) in kept and "stuck_ranks.py" in kept


PLACES = {
    "reward": r"is at stuck_ranks\.py:\d+ in (?:slow_reward|held) \(\d+ collectives joined\)\.",
    "loader": r"is in DataLoader\.__next__ \(data loading, stuck_ranks\.py:\d+ in deadlocked_loader, .*\)\.",
    "loop": r"is at stuck_ranks\.py:\d+ in (?:endless_loop|held) \(\d+ collectives joined\)\.",
    "rollout": r"is in generate \(generation, stuck_ranks\.py:\d+ in \S*(?:__call__|_generation), .*\)\.",
}


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("hang", PLACES)
def test_rank_in_other_code_is_named(ranks: Ranks, watch: Watch, hang: str) -> None:
    with held(ranks, hang):
        checked(watch, watch.stall(), 1, WAITING + PLACES[hang])


def test_stopped_rank_is_named(ranks: Ranks, watch: Watch) -> None:
    with stopped(ranks):
        says = r"Ranks 0, 2 wait in all_reduce .*; rank 1 is stopped by a signal such as SIGSTOP.*"
        checked(watch, watch.stall(), 1, says)


@pytest.mark.usefixtures("patient")
def test_rank_that_waits_for_a_file_lock_is_named(ranks: Ranks, watch: Watch) -> None:
    with file_lock(ranks):
        says = rf"waits for a file lock \(held by PID {os.getpid()}, .*locked_file.*\)\."
        checked(watch, watch.stall(), 1, WAITING + says)


def test_rank_that_holds_the_interpreter_lock_is_named(ranks: Ranks, watch: Watch) -> None:
    """No thread of the rank can answer, and torch's counters stay unknown: faulthandler prints the stack."""
    with native_call(ranks):
        says = r"Ranks 0, 2 wait in all_reduce .*; rank 1 is at .*native_call \(a call holds the .* lock\)\."
        checked(watch, watch.stall(), 1, says)


@pytest.mark.usefixtures("patient")
def test_rank_that_is_stuck_in_a_save_is_named(ranks: Ranks, watch: Watch) -> None:
    with stuck_save(ranks):
        says = r"is in torch\.save \(checkpoint, stuck_ranks\.py:\d+ in stuck_save, .*\)\."
        checked(watch, watch.stall(), 1, WAITING + says)


def test_stall_closes_when_the_run_continues(ranks: Ranks, watch: Watch) -> None:
    with held(ranks, "reward"):
        watch.stall()
    watch.until(lambda: watch.stalls[-1].status == "resolved")
    assert watch.stalls[-1].resolution == "recovered"
    assert watch.notices == []
