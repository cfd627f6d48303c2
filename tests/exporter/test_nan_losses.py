"""A NaN loss is reported at the same step each time, whoever detects it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from stallwatch_exporter.probe.api import Probe

NAN = math.nan
RULE = "loss-nan"


def train(
    probed: tuple[Any, list[Probe]], losses: Sequence[float | None], seconds: float = 1.0, **fields: Any
) -> None:
    """Make 15 good steps, and then steps with these losses, which only the probe reports."""
    run, (probe, _) = probed
    for _ in range(15):
        run.wait(seconds)
        probe.step(loss=0.5)
    for number, loss in enumerate(losses):
        probe.step(loss=loss, **{name: values[number] for name, values in fields.items()})
        run.wait(seconds)
    run.wait(2.0)


@pytest.mark.parametrize("seconds", [0.1, 0.25, 1.0, 7.0])
def test_third_consecutive_nan_loss_opens_an_incident(
    probed: tuple[Any, list[Probe]], seconds: float
) -> None:
    run, _ = probed
    train(probed, [0.5, NAN, NAN, 0.5, NAN, None, NAN, NAN, NAN, NAN], seconds)
    (incident,) = run.sent
    assert (incident.rule, incident.severity, incident.harm, incident.rank) == (RULE, "critical", "fatal", 0)
    assert incident.step == 23
    assert "loss nan, at least 3 times in a row" in incident.evidence[0]
    assert run.end("finished", 0).verdict == "failed"


def test_incident_closes_when_losses_are_finite_again(probed: tuple[Any, list[Probe]]) -> None:
    run, (probe, _) = probed
    train(probed, [NAN] * 4)
    for _ in range(19):
        probe.step(loss=0.5)
        run.wait(1.0)
    assert run.changes == [(f"finding/{RULE}/1", "open", "")]
    for _ in range(60):
        probe.step(loss=0.5)
        run.wait(1.0)
    assert run.changes[1:] == [(f"finding/{RULE}/1", "resolved", "recovered")]
    assert run.end("finished", 0).verdict == "finished"


def test_steps_skipped_by_the_loss_scaler_do_not_count(probed: tuple[Any, list[Probe]]) -> None:
    train(probed, [NAN] * 10, skipped_steps=[float(number) for number in range(1, 11)])
    assert probed[0].sent == []


def test_zero_losses_are_not_nan(probed: tuple[Any, list[Probe]]) -> None:
    train(probed, [0.0] * 10)
    assert probed[0].sent == []


@pytest.mark.parametrize("seconds", [0.02, 0.2, 1.0, 3.0])
def test_printed_nan_losses_open_an_incident_at_any_pace(watch: Callable[..., Any], seconds: float) -> None:
    run = watch()
    run.steps(1, 20, seconds)
    for step in range(21, 40):
        run.say(f"step {step}/1000 loss nan")
        run.wait(seconds)
    run.wait(2.0)
    (incident,) = run.sent
    assert (incident.rule, incident.severity) == (RULE, "critical")


@pytest.mark.parametrize("seconds", [0.02, 1.0])  # with and without an incident before the end
def test_failed_run_with_nan_losses_is_reported_at_the_first_nan(
    watch: Callable[..., Any], seconds: float
) -> None:
    run = watch()
    run.steps(1, 20, seconds)
    for step in range(21, 60):
        run.say(f"step {step}/1000 loss nan")
        run.wait(seconds)
    run.end("failed", 1)
    assert (run.sent[-1].kind, run.sent[-1].rule, run.sent[-1].step) == ("ended", RULE, 21)


@pytest.mark.parametrize("seconds", [0.02, 0.2, 0.49, 0.51, 3.0])
def test_single_nan_loss_opens_no_incident(watch: Callable[..., Any], seconds: float) -> None:
    run = watch()
    run.steps(1, 20, seconds)
    run.say("step 21/1000 loss nan")
    run.wait(seconds)
    run.steps(22, 60, seconds)
    run.wait(5.0)
    assert run.sent == []


def test_final_nan_loss_is_reported(watch: Callable[..., Any]) -> None:
    run = watch()
    run.steps(1, 20, 30.0)
    run.say("step 21/1000 loss nan")
    run.wait(25.0)
    assert [(each.rule, each.severity) for each in run.sent] == [(RULE, "critical")]
