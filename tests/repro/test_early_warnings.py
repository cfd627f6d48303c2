"""Real failures of real libraries are told before they come, and healthy runs are told nothing."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from record import environment
from test_repro import HERE
from test_repro import run as launch

from stallwatch_exporter.incident import Incident
from stallwatch_exporter.rings.probing import with_probe
from stallwatch_exporter.rings.reader import RingReader
from stallwatch_exporter.running.command import run_command
from stallwatch_exporter.settings import ExporterSettings
from stallwatch_rules.pages.catalogue import load_catalogue

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


def torchrun(*options: str, ranks: int = 1) -> list[str]:
    return [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks), *options]


class Watched:
    """A run in front of the agent; `told` are its incidents, as they were at each change."""

    def __init__(self, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.home, self.hold = home, home / "seen"
        self.told: list[Incident] = []
        home.mkdir()
        for name, value in environment(None).items():
            monkeypatch.setenv(name, value)

    def run(
        self, program: str, *options: str, ranks: int = 1, hidden: bool = False, **settings: float
    ) -> int:
        """Run a program; with `hidden` its ranks print into files that nobody reads."""
        away = ("--redirects", "3", "--log-dir", str(self.home / "logs")) if hidden else ()
        command = torchrun(*away, str(HERE / program), *options, ranks=ranks)
        told = ExporterSettings(home=self.home, port=0, linger_seconds=0.0, **settings)  # type: ignore[arg-type]
        return run_command(command, told, [self.tell], load_catalogue())

    def tell(self, incident: Incident) -> None:
        self.told.append(incident)
        self.hold.write_text("")  # whoever waits for the incident may go on

    @property
    def diagnosis(self) -> Any:
        return json.loads(next(self.home.glob("runs/*/diagnosis.json")).read_text())

    def events(self, kind: str) -> list[dict[str, Any]]:
        lines = next(self.home.glob("runs/*/events.jsonl")).read_text().splitlines()
        return [event for event in map(json.loads, lines) if event["kind"] == kind]


@pytest.fixture
def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Watched:
    return Watched(tmp_path / "home", monkeypatch)


def test_a_model_left_in_evaluation_mode_is_told_while_it_trains_on(watched: Watched) -> None:
    """DeepSpeed 0.15.4 and newer say nothing of it, and the run ends well."""
    assert watched.run("backward_in_eval_mode.py", "--hold", str(watched.hold), ranks=2) == 0
    opened = watched.told[0]
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
def test_what_fails_is_told_just_before_and_diagnosed_without_a_log(
    watched: Watched, program: str, options: tuple[str, ...], rule: str, place: str
) -> None:
    assert watched.run(program, *options, hidden=True) == 1
    warned, raised = watched.events("concern"), watched.events("exception")
    assert warned[0]["rule"] == rule and warned[0]["time"] <= raised[0]["time"]
    diagnosis = watched.diagnosis
    assert (diagnosis["verdict"], diagnosis["primary"]["rule"]) == ("failed", rule)
    assert diagnosis["primary"]["harm"] == "fatal"
    assert place in diagnosis["primary"]["evidence"][0]
    assert raised[0]["message"].splitlines()[0] in diagnosis["primary"]["evidence"][1]
    assert [(one.kind, one.rule) for one in watched.told if one.status == "open"][-1] == ("ended", rule)


def test_a_trainer_that_saves_the_bare_policy_is_told_before_its_first_step(watched: Watched) -> None:
    assert watched.run("saving_trainer.py", "--swap", "--hold", str(watched.hold)) == 1
    opened = watched.told[0]
    assert (opened.rule, opened.severity, opened.status) == (SAVE, "warning", "open")
    assert "PolicySaver.save_model" in opened.evidence[0] and "saving_trainer.py:" in opened.evidence[0]
    assert "step 2" in opened.note
    (raised,) = watched.events("exception")
    assert raised["exception"] == "builtins.AttributeError"
    assert opened.opened_at < raised["time"]


def test_a_standstill_after_silent_invalidations_names_the_modules(watched: Watched) -> None:
    """Neither a step nor a message of DeepSpeed stands in this log."""
    options = ("--steps", "40", "--hold", str(watched.hold))
    assert watched.run("quiet_zero3.py", *options, stall_floor_seconds=3.0, stall_start_seconds=90.0) == 0
    # A busy machine may stand still earlier, too, and go on by itself.
    stall = [one for one in watched.told if one.kind == "stall" and one.status == "open"][-1]
    assert stall.rule == "zero3-trace-cache-invalidated"
    assert "expected blocks.0 (Block), but got blocks.2 (Block)" in stall.evidence[0]
    assert stall.count == 10 and stall.step == 40


def test_zero3_that_does_not_gather_weights_is_told_before_its_first_checkpoint(watched: Watched) -> None:
    assert watched.run("saving_trainer.py", "--not-gathered", "--hold", str(watched.hold)) == 0
    opened = watched.told[0]
    assert (opened.rule, opened.severity) == (NOT_GATHERED, "warning")
    written = [event["time"] for event in watched.events("checkpoint")]
    assert written and opened.opened_at < min(written)
    assert watched.diagnosis["verdict"] == "healthy"  # a notice: nothing failed


@pytest.mark.parametrize(
    ("program", "options"),
    [
        ("quiet_modes.py", ()),
        ("healthy.py", ("--steps", "20", "--pace", "0")),
        ("healthy.py", ("--changing-order", "--steps", "20", "--pace", "0")),
        ("quiet_zero3.py", ()),
    ],
    ids=["modes", "healthy", "changing-order", "quiet"],
)
def test_healthy_runs_are_not_warned_of(tmp_path: Path, program: str, options: tuple[str, ...]) -> None:
    rings = tmp_path / "rings"
    rings.mkdir()
    code, output = launch(torchrun(program, *options), with_probe(environment(None), rings))
    assert code == 0, output
    events = [json.loads(line) for path in rings.glob("*.jsonl") for line in path.read_text().splitlines()]
    assert [event for event in events if event["kind"] == "concern"] == []
    (reader,) = map(RingReader, rings.glob("*.ring"))
    reader.read()
    assert reader.faults == 0


def test_a_healthy_trainer_is_told_its_checkpoints_and_nothing_else(tmp_path: Path) -> None:
    rings = tmp_path / "rings"
    rings.mkdir()
    code, output = launch(torchrun("saving_trainer.py", "--empty"), with_probe(environment(None), rings))
    assert code == 0, output
    events = [json.loads(line) for path in rings.glob("*.jsonl") for line in path.read_text().splitlines()]
    written = {(Path(event["path"]).name, event["by"]) for event in events if event["kind"] == "checkpoint"}
    assert {("checkpoint-2", "trainer"), ("checkpoint-4", "trainer"), ("head.bin", "torch.save")} <= written
    assert ("global_step2", "save_checkpoint") in written
    assert [event for event in events if event["kind"] == "concern"] == []
