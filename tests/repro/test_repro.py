"""The newest DeepSpeed still fails the way the rules say, and Stallwatch still says why."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
from pathlib import Path

import pytest
from record import environment
from scenarios import SCENARIOS, Scenario

from stallwatch_exporter.files.postmortem import diagnose_paths
from stallwatch_rules.pages.catalogue import load_catalogue

pytestmark = pytest.mark.repro
HERE = Path(__file__).resolve().parent
CURRENT = [scenario for scenario in SCENARIOS if scenario.deepspeed is None and not scenario.slow]


def run(command: list[str], env: dict[str, str], seconds: float = 120) -> tuple[int, str]:
    """Run a launch from the programs' folder; its ranks are ended with it, whatever happens."""
    child = subprocess.Popen(
        command, cwd=HERE, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
    )
    try:
        output, _ = child.communicate(timeout=seconds)
    finally:
        if (
            child.poll() is None
        ):  # SIGTERM, not SIGKILL: torchrun then ends its ranks, which have sessions of their own
            os.killpg(child.pid, signal.SIGTERM)
            child.wait(timeout=30)
    return child.returncode, output.decode(errors="replace")


def require(scenario: Scenario) -> None:
    for package in scenario.needs:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")


@pytest.mark.parametrize("scenario", CURRENT, ids=lambda scenario: scenario.name)
def test_it_still_fails_like_this_and_is_told_why(scenario: Scenario, tmp_path: Path) -> None:
    require(scenario)
    shorter = ["--steps", "20"] if scenario.program == "healthy.py" else []
    command = [*scenario.command(log_dir=str(tmp_path / "logs")), *shorter]
    code, launcher = run(command, environment(None))
    logs = sorted(tmp_path.glob("logs/*/attempt_0/*/std*.log"))
    printed = "\n".join(log.read_text() for log in logs)
    assert code == scenario.exit_code, printed + launcher
    assert scenario.message in printed
    diagnosis, problems = diagnose_paths([tmp_path / "logs"], catalogue=load_catalogue())
    assert not problems
    assert diagnosis.verdict == scenario.verdict
    assert (diagnosis.primary and diagnosis.primary.rule) == scenario.primary


def test_a_rank_without_data_really_hangs_the_others(tmp_path: Path) -> None:
    """The program behind the demo, cut short: it trains, invalidates, and only the timeout ends it."""
    scenario = next(scenario for scenario in SCENARIOS if scenario.name == "zero3-stall")
    require(scenario)
    short = ["--steps", "20", "--hang-at", "9", "--pace", "0", "--timeout", "5", "--seed", "2"]
    code, output = run([*scenario.command(), *short], environment(None))
    assert code == 1, output
    assert "[default0]:Invalidate trace cache @ step" in output
    for rank in (0, 1):
        assert f"[default{rank}]:rank {rank} step 9/20 loss" in output
        assert f"rank {rank} step 10/20" not in output
    assert "Timed out waiting 5000ms for" in output
    assert "Root Cause (first observed failure):\n[0]:" in output
