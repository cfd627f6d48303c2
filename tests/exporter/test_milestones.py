"""Published values of an agent about progress, checkpoints and the end, for external readers."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .conftest import Watched

LAST = "stallwatch_last_progress_timestamp_seconds"


def test_time_of_the_last_progress_stops_with_the_run(run: Watched) -> None:
    assert run.metric(LAST) == run.now  # the start is the first sign of life
    run.steps(1, 10)
    last_step = run.now
    run.wait(60)
    assert run.metric(LAST) == last_step


def test_checkpoint_ends_when_training_continues(run: Watched) -> None:
    run.steps(1, 3)
    assert run.metric("stallwatch_last_checkpoint_timestamp_seconds") is None
    for first in (4, 24):
        run.say(f"Saving model checkpoint to out/checkpoint-{first}")
        run.wait(4)
        run.steps(first, first + 19, seconds=2.0)
    at = run.metric("stallwatch_last_checkpoint_timestamp_seconds")
    assert at is not None and 36 < run.now - at < 42
    interval = run.metric("stallwatch_checkpoint_interval_seconds")
    assert interval is not None and 40 < interval < 48


def test_end_is_published_with_its_kind(run: Watched) -> None:
    run.steps(1, 3)
    run.end("oom-killed", 137)
    assert run.metric("stallwatch_end_timestamp_seconds{ending=oom-killed}") == run.now
