"""The agent at invalidated trace caches and slow steps: a stall's cause, a warning, or nothing."""

from __future__ import annotations

from typing import Any

import pytest

CACHE = "Invalidate trace cache @ step 10: expected module 19, but got module 11"


def test_invalidations_before_a_stall_are_its_cause(run: Any) -> None:
    for step in range(1, 21):
        run.steps(step, step)
        run.say(*[CACHE] * 3)
    assert run.sent == []
    run.wait(32)
    assert run.changes == [("stall/zero3-trace-cache-invalidated/1", "open", "")]
    (stall,) = run.sent
    assert stall.count == 60 and CACHE in stall.evidence[0] and stall.note
    run.wait(60)
    assert len(run.changes) == 1  # the finding is not reported a second time
    run.say("step 21/1000 loss 0.1")
    run.wait(1)
    assert run.changes[1:] == [("stall/zero3-trace-cache-invalidated/1", "resolved", "recovered")]
    assert run.metric("stallwatch_trace_cache_invalidations_total") == 60


def test_continuing_invalidations_do_not_hide_a_stall(run: Any) -> None:
    run.steps(1, 60, seconds=0.25)
    stepped_at = run.now
    while run.now < stepped_at + 60:
        run.say(CACHE)
        run.wait(0.5)
    assert run.changes == [("stall/zero3-trace-cache-invalidated/1", "open", "")]
    assert run.sent[0].opened_at - stepped_at <= 45
    run.steps(61, 80, seconds=0.25)
    run.wait(2)
    assert run.changes[1:] == [("stall/zero3-trace-cache-invalidated/1", "resolved", "recovered")]


def test_growing_invalidations_with_slower_steps_warn_once(run: Any) -> None:
    for step in range(1, 241):
        run.say(*[CACHE] * (step // 40))
        run.steps(step, step, seconds=1.0 + step / 60)
    opened = [(item.rule, item.severity) for item in run.sent if item.status == "open"]
    assert set(opened) == {("zero3-trace-cache-invalidated", "warning")}
    assert len(run.changes) == 1


def test_invalidations_without_slowdown_are_not_reported(run: Any) -> None:
    for step in range(1, 60):
        run.say(CACHE)
        run.steps(step, step)
    assert run.sent == []


def test_invalidations_with_slowdown_are_a_warning(run: Any) -> None:
    run.steps(1, 40, seconds=1.0)
    for step in range(41, 90):
        run.say(*[CACHE] * 4)
        run.steps(step, step, seconds=4.0)
    opened = [incident for incident in run.sent if incident.status == "open"]
    assert [(item.rule, item.severity) for item in opened][:1] == [
        ("zero3-trace-cache-invalidated", "warning")
    ]
    assert [item.rule for item in opened if item.status == "open"].count("step-time-degraded") == 0
    assert opened[0].step == 40 and opened[0].last_loss is None, "the last loss is of a later step"
    run.end("finished", 0)
    assert {change[0] for change in run.changes} == {"finding/zero3-trace-cache-invalidated/1"}


def test_slower_steps_are_a_warning(run: Any) -> None:
    run.steps(1, 40, seconds=1.0)
    run.steps(41, 90, seconds=4.0)
    assert [(item.rule, item.severity) for item in run.sent][:1] == [("step-time-degraded", "warning")]


@pytest.mark.parametrize(
    ("later", "changes"),
    [
        ([8.0, 16.0, 32.0], ["open"]),  # slower and slower
        ([1.0] * 4, ["open", "resolved"]),
    ],
)
def test_incident_of_slower_steps_lasts_until_steps_are_fast(
    run: Any, later: list[float], changes: list[str]
) -> None:
    run.steps(1, 40, seconds=1.0)
    run.steps(41, 60, seconds=4.0)
    first = 61
    for seconds in later:
        run.steps(first, first + 19, seconds=seconds)
        first += 20
    assert [status for _, status, _ in run.changes] == changes


@pytest.mark.parametrize(("another", "warned"), [(True, []), (False, ["step-time-degraded"])])
def test_slower_steps_of_a_second_training_are_not_reported(
    probed: tuple[Any, list[Any]], another: bool, warned: list[str]
) -> None:
    run, probes = probed
    run.train(probes, 60, 0.25)
    if another:
        probes[0].event("training")
    run.train(probes, 40, 1.5)
    assert [item.rule for item in run.sent if item.status == "open"][:1] == warned
