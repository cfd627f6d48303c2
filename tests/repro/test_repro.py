"""The newest DeepSpeed still fails as the rules describe, and Stallwatch still finds the cause.

These tests read the ranks' output as a log; ``test_early_warnings`` reads the probes' events. ``test_probe``
checks that a probe does not change the output.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path

import pytest
from launching import SHORT, Probed, Watched, launch, printed, torchrun
from record import environment
from scenarios import SCENARIOS, Scenario

from stallwatch_exporter.postmortem.diagnose import Options, diagnose_paths
from stallwatch_rules.locale import rendered
from stallwatch_rules.pages.catalogue import Catalogue
from stallwatch_rules.report.json import schema_1_verdict

pytestmark = pytest.mark.repro
CURRENT = [scenario for scenario in SCENARIOS if scenario.deepspeed is None and not scenario.slow]


def require(scenario: Scenario) -> None:
    for package in scenario.needs:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")


@pytest.mark.parametrize("scenario", CURRENT, ids=lambda scenario: scenario.name)
def test_reproduction_fails_and_is_diagnosed(
    scenario: Scenario,
    probed_run: Callable[..., Probed],
    hidden_run: Callable[..., Watched],
    catalogue: Catalogue,
) -> None:
    require(scenario)
    run: Probed | Watched
    if scenario.program == "healthy.py":
        run = probed_run(scenario.program, *scenario.options, *SHORT)
    else:
        run = hidden_run(scenario.program, *scenario.options)
    judge(scenario, run.code, run.logs, catalogue)


def test_reproduction_fails_without_a_probe(tmp_path: Path, catalogue: Catalogue) -> None:
    """The other tests use a probe and no compiler (see ``tiny``); this one has both differences."""
    scenario = next(scenario for scenario in SCENARIOS if scenario.name == "zero3-dummy-loss")
    require(scenario)
    away = ("--redirects", "3", "--log-dir", str(tmp_path))
    env = {**environment(None), "REPRODUCE_WITH_COMPILER": "1"}
    code, _ = launch(torchrun(*away, scenario.program, *scenario.options), env)
    judge(scenario, code, tmp_path, catalogue)


def judge(scenario: Scenario, code: int | None, logs: Path, catalogue: Catalogue) -> None:
    """Check that a run ended in the scenario's failure, and that its logs show it."""
    found = printed(logs)
    assert code == scenario.exit_code, found
    assert scenario.message in found
    diagnosis, problems = rendered(diagnose_paths([logs], Options(catalogue)))
    assert not problems
    assert schema_1_verdict(diagnosis) == scenario.verdict
    assert (diagnosis.primary and diagnosis.primary.rule) == scenario.primary


def test_rank_without_data_hangs_the_others() -> None:
    """A short version of the demo's program trains, invalidates, and ends only by the timeout."""
    scenario = next(scenario for scenario in SCENARIOS if scenario.name == "zero3-stall")
    require(scenario)
    short = ["--steps", "20", "--hang-at", "9", "--pace", "0", "--timeout", "5", "--seed", "2"]
    code, output = launch([*scenario.command(), *short], environment(None))
    assert code == 1, output
    assert "[default0]:Invalidate trace cache @ step" in output
    for rank in (0, 1):
        assert f"[default{rank}]:rank {rank} step 9/20 loss" in output
        assert f"rank {rank} step 10/20" not in output
    assert "Timed out waiting 5000ms for" in output
    assert "Root Cause (first observed failure):\n[0]:" in output
