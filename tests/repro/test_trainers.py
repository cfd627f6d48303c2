"""TRL's own trainers on the newest stack: the probe's events, the log, and the diagnosis."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path

import pytest
from launching import forks
from watched import Seen, torchrun, watch

pytestmark = [
    pytest.mark.repro,
    pytest.mark.timeout(300),  # fifteen seconds under torchrun on an idle machine
    pytest.mark.skipif(importlib.util.find_spec("trl") is None, reason="trl is not installed"),
]
STEPS = 8
BOTH = {"0": STEPS, "1": STEPS}


#: Imports of the programs, once for all tests that check neither the launcher nor the imports.
NAMES = (
    *("datasets:Dataset", "peft:LoraConfig", "trl:GRPOTrainer", "trl:SFTTrainer"),
    "trl.experimental.online_dpo:OnlineDPOTrainer",
)


def run(folder: Path, trainer: str, *options: str, by: Callable[..., list[str]] = torchrun) -> Seen:
    seen = watch(by(f"trainers/{trainer}.py", *options), folder / "home")
    assert seen.faults == 0
    assert {"torch", "deepspeed", "transformers", "accelerate", "trl"} <= set(seen.versions)
    return seen


def forked(program: str, *options: str) -> list[str]:
    """Return the arguments of a forked launch with the trainers imported, to follow a Python."""
    return forks(*NAMES).command("--ranks", "2", program, *options)[1:]


def nothing_is_wrong(seen: Seen, external: int = 0) -> None:
    assert (seen.exit_code, seen.verdict, seen.primary) == (0, "healthy", None)
    assert [rule for rule, harm in seen.findings.items() if harm != "harmless"] == []
    assert seen.incidents == []
    assert seen.steps == BOTH
    assert seen.invalidations == {"mismatch": 0, "short": 0, "external": external}
    assert (seen.raised, seen.exceptions, seen.early, seen.messages) == ([], [], [], 0)


@pytest.mark.parametrize(
    ("trainer", "external", "by"),
    # TRL from 1.5 invalidates the trace cache after each generation; Online DPO runs under ZeRO-2 here.
    [("dpo", 0, torchrun), ("grpo", STEPS, forked), ("online_dpo", 0, forked)],
)
def test_healthy_trainer_has_no_findings(
    tmp_path: Path, trainer: str, external: int, by: Callable[..., list[str]]
) -> None:
    nothing_is_wrong(run(tmp_path, trainer, "--steps", str(STEPS), by=by), external)


def test_exception_of_a_reward_function_is_shown(tmp_path: Path) -> None:
    """No rule matches a program's own exception, so it is shown unchanged."""
    seen = run(tmp_path, "grpo", "--reward", "raises", by=forked)
    raised = "LookupError: the reward table has no entry for this answer"
    assert (seen.exit_code, seen.verdict, seen.primary) == (1, "unknown-failure", None)
    assert seen.raised == seen.exceptions == [raised]
    assert seen.steps == {"0": 4, "1": 4}


def test_endless_reward_function_ends_as_a_timeout(tmp_path: Path) -> None:
    """The rank that waits for it fails; the hanging rank prints nothing."""
    seen = run(tmp_path, "grpo", "--reward", "stuck", by=forked)
    assert (seen.exit_code, seen.verdict, seen.primary) == (1, "failed", "gloo-collective-timeout")
    assert any("Timed out waiting 5000ms" in text for text in seen.raised)
    assert any("Timed out waiting 5000ms" in text for text in seen.exceptions)
    assert seen.steps == {"0": 4, "1": 4}


def test_policy_left_in_evaluation_mode_is_reported(tmp_path: Path) -> None:
    """DeepSpeed trains on and prints nothing: only the probe sees it."""
    seen = run(tmp_path, "grpo", "--reward", "eval", by=forked)
    assert seen.exit_code == 0
    assert (seen.raised, seen.exceptions) == ([], [])
    assert seen.steps == BOTH
    assert seen.early == ["zero3-backward-in-eval-mode"]
    assert seen.findings["zero3-backward-in-eval-mode"] == "degrading"


def test_ungathered_save_of_sft_is_reported(tmp_path: Path) -> None:
    """transformers saves a DeepSpeed checkpoint instead and prints that; no other finding is expected."""
    seen = run(tmp_path, "sft", "--save", by=forked)
    nothing_is_wrong(seen)
    assert seen.findings == {"zero3-weights-not-gathered-notice": "harmless"}
