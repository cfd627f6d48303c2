"""Failures of real libraries are reported before they occur, and healthy runs cause no report."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path

import pytest
from launching import SHORT, Probed, Watched, printed, probed

from stallwatch_rules.locale import render
from stallwatch_rules.pages.catalogue import Catalogue

NEEDED = ("deepspeed", "transformers", "accelerate")
pytestmark = [
    pytest.mark.repro,
    pytest.mark.skipif(
        any(importlib.util.find_spec(name) is None for name in NEEDED), reason="deepspeed is not installed"
    ),
]
EVAL, NONE, SUM = (
    "zero3-backward-in-eval-mode",
    "deepspeed-initialize-model-none",
    "zero3-dummy-loss-invalid-gradient",
)
SAVE, NOT_GATHERED = "zero3-save-unwrapped-model", "zero3-weights-not-gathered-notice"


@pytest.fixture
def watched(tmp_path: Path, catalogue: Catalogue) -> Watched:
    return Watched(tmp_path / "home", catalogue)


def test_training_in_evaluation_mode_is_reported(watched: Watched) -> None:
    """DeepSpeed 0.15.4 and later print nothing about it, and the run ends well."""
    assert watched.run("backward_in_eval_mode.py", "--hold", str(watched.hold), ranks=2) == 0
    opened = watched.sent[0]
    assert (opened.rule, opened.severity, opened.status) == (EVAL, "warning", "open")
    assert "head (Linear) and 10 other modules are in evaluation mode" in opened.evidence[0]
    assert "backward_in_eval_mode.py:" in opened.evidence[0]
    assert (watched.diagnosis["verdict"], watched.diagnosis["primary"]["rule"]) == ("degraded", EVAL)
    assert {event["rank"] for event in watched.events("concern")} == {0, 1}


@pytest.mark.parametrize(
    ("program", "options", "rule", "place"),
    [
        ("dummy_loss.py", (), SUM, "adapter.bias"),
        ("dummy_loss.py", ("--unused",), SUM, "dummy_loss.py:"),
        ("initialize_model_none.py", (), NONE, "tiny.py:"),
        ("save_unwrapped_model.py", (), SAVE, "save_unwrapped_model.py:"),
    ],
    ids=["sum", "sum-unused", "no-model", "unwrapped"],
)
def test_failure_is_announced_and_diagnosed_without_a_log(
    hidden_run: Callable[..., Watched], program: str, options: tuple[str, ...], rule: str, place: str
) -> None:
    watched = hidden_run(program, *options)
    assert watched.code == 1
    warned, raised = watched.events("concern"), watched.events("exception")
    assert warned[0]["rule"] == rule and warned[0]["time"] <= raised[0]["time"]
    diagnosis = watched.diagnosis
    assert (diagnosis["verdict"], diagnosis["primary"]["rule"]) == ("failed", rule)
    assert diagnosis["primary"]["harm"] == "fatal"
    assert place in diagnosis["primary"]["evidence"][0]
    assert raised[0]["message"].splitlines()[0] in diagnosis["primary"]["evidence"][1]
    last = watched.sent[-1]
    assert (last.kind, last.rule, last.outcome) == ("ended", rule, "crashed")


def test_trainer_that_saves_the_bare_policy_is_reported_at_the_start(watched: Watched) -> None:
    assert watched.run("saving_trainer.py", "--swap", "--hold", str(watched.hold)) == 1
    opened = watched.sent[0]
    assert (opened.rule, opened.severity, opened.status) == (SAVE, "warning", "open")
    assert "PolicySaver.save_model" in opened.evidence[0] and "saving_trainer.py:" in opened.evidence[0]
    assert "step 2" in render(opened.note)
    (raised,) = watched.events("exception")
    assert raised["exception"] == "builtins.AttributeError"
    assert opened.opened_at < raised["time"]


def test_stall_after_silent_invalidations_names_the_modules(watched: Watched) -> None:
    """The log contains neither steps nor DeepSpeed's messages."""
    options = ("--steps", "40", "--hold", str(watched.hold))
    floors = {"stall_floor_seconds": 3.0, "stall_start_seconds": 90.0}
    assert watched.run("quiet_zero3.py", *options, own_family=True, **floors) == 0
    # A busy machine may cause an earlier stall, which ends by itself.
    stall = [item for item in watched.sent if item.kind == "stall" and item.status == "open"][-1]
    assert stall.rule == "zero3-trace-cache-invalidated"
    assert any(
        "expected blocks.0 (Block), but got blocks.2 (Block)" in render(line) for line in stall.evidence
    )
    assert stall.count == 10 and stall.step == 40


def test_missing_gather_of_weights_is_reported_before_a_checkpoint(watched: Watched) -> None:
    assert watched.run("saving_trainer.py", "--not-gathered", "--hold", str(watched.hold)) == 0
    opened = watched.sent[0]
    assert (opened.rule, opened.severity) == (NOT_GATHERED, "warning")
    written = [event["time"] for event in watched.events("checkpoint")]
    assert written and opened.opened_at < min(written)
    assert watched.diagnosis["verdict"] == "finished"  # a notice, not a failure


@pytest.mark.parametrize(
    ("program", "options"),
    [
        ("quiet_modes.py", ()),
        ("healthy.py", SHORT),
        ("healthy.py", ("--changing-order", "--pace", "0.1", *SHORT)),
        ("quiet_zero3.py", ()),
    ],
    ids=["modes", "healthy", "changing-order", "quiet"],
)
def test_healthy_runs_cause_no_warnings(
    probed_run: Callable[..., Probed], program: str, options: tuple[str, ...]
) -> None:
    run = probed_run(program, *options)
    assert run.code == 0, printed(run.logs)
    assert run.events("concern") == []
    rings = run.rings()
    assert len(rings) == 2, "one of each rank: without a probe nobody would warn of anything"
    for reader in rings:
        reader.read()
        assert reader.faults == 0


def test_healthy_trainer_reports_only_its_checkpoints(tmp_path: Path) -> None:
    run = probed(tmp_path / "run", "saving_trainer.py", "--empty", ranks=1)
    assert run.code == 0, printed(run.logs)
    written = {(Path(event["path"]).name, event["by"]) for event in run.events("checkpoint")}
    assert {("checkpoint-2", "trainer"), ("checkpoint-4", "trainer"), ("head.bin", "torch.save")} <= written
    assert ("global_step2", "save_checkpoint") in written
    assert run.events("concern") == []
