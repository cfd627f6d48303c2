"""Warnings of the hooks and their exceptions, on real torch modules and graphs without DeepSpeed.

``tests/repro/test_early_warnings.py`` tests the same with real engines.
"""

from __future__ import annotations

import inspect
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from stallwatch_exporter.probe.api import Probe
from stallwatch_exporter.probe.hooks.checkpoints import (
    AGAIN_SECONDS,
    FOLDER_SECONDS,
    MOST_REPORTS,
    Written,
    folder_of,
)
from stallwatch_exporter.probe.hooks.saving import engine_of, look, swaps_engine, watch_trainer
from stallwatch_exporter.probe.hooks.zero import (
    EvalWatch,
    SumWatch,
    in_evaluation,
    summed_while_partitioned,
    trainer_without_model,
)
from stallwatch_exporter.rings.reader import RingReader

torch = pytest.importorskip("torch")
nn = torch.nn


@pytest.fixture
def probe(tmp_path: Path) -> Probe:
    return Probe(tmp_path, {"RANK": "0"})


def events_in(tmp_path: Path) -> list[dict[str, Any]]:
    """Return the events in the probe's file."""
    return [json.loads(line) for path in tmp_path.glob("*.jsonl") for line in path.read_text().splitlines()]


# ---- evaluation mode


class Tower(nn.Module):  # type: ignore[name-defined,misc]
    """A frozen encoder, a normalization with statistics, and a trainable head."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Linear(4, 4).requires_grad_(False)
        self.norm = nn.BatchNorm1d(4)
        self.drop = nn.Dropout(0.1)
        self.head = nn.Linear(4, 1)


def test_modules_in_evaluation_mode_on_purpose_are_ignored() -> None:
    model = Tower()
    assert in_evaluation(model, strict=False) == {}
    for part in (model.frozen, model.norm, model.drop):
        part.eval()
    assert in_evaluation(model, strict=False) == {}
    assert set(in_evaluation(model, strict=True).values()) == {"frozen", "norm", "drop"}
    model.eval()
    assert in_evaluation(model, strict=False) == {model.head: "head"}


def test_adapters_in_evaluation_mode_are_found_in_a_frozen_model() -> None:
    model = Tower().requires_grad_(False)
    model.head.lora_A = nn.Linear(4, 2)
    assert in_evaluation(model.eval(), strict=False) == {model.head.lora_A: "head.lora_A"}
    model.head.lora_A.train()
    assert in_evaluation(model, strict=False) == {}


class Turn:
    """Clock that the test moves."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


class Engine:
    """The parts of an engine that the watch uses."""

    def __init__(self, module: Any) -> None:
        self.module = module


def backward(watch: EvalWatch, engine: Engine, *reached: Any) -> None:
    """Run a backward pass through some of the engine's modules."""
    frame = inspect.currentframe()
    assert frame is not None
    watch.begins(engine, None, frame)
    for sub_module in reached:
        arrive(watch, sub_module)


def arrive(watch: EvalWatch, sub_module: Any) -> None:
    frame = inspect.currentframe()
    assert frame is not None and sub_module is frame.f_locals["sub_module"]
    watch.reached(None, frame)


def test_only_modules_in_the_backward_pass_are_reported(probe: Probe, tmp_path: Path) -> None:
    model, armed = Tower(), list[bool]()
    model.teacher = nn.Linear(4, 4).eval()  # untrained although not frozen
    watch = EvalWatch(probe, armed.append, refused=False, clock=Turn())
    backward(watch, Engine(model), model.head, model.norm)
    assert events_in(tmp_path) == []
    model.eval()
    backward(watch, Engine(model), model.norm, model.head)
    (event,) = events_in(tmp_path)
    assert (event["rule"], event["seen"]) == ("zero3-backward-in-eval-mode", "eval-silent")
    assert (event["module"], event["others"]) == ("head (Linear)", "1")
    assert event["place"].startswith(__file__ + ":")


def test_model_is_checked_periodically_and_after_evaluation(probe: Probe, tmp_path: Path) -> None:
    clock, model, armed = Turn(), Tower(), list[bool]()
    engine, watch = Engine(model), EvalWatch(probe, armed.append, refused=False, clock=clock)
    backward(watch, engine, model.head)
    model.head.eval()
    backward(watch, engine, model.head)
    assert events_in(tmp_path) == []  # too soon
    clock.now = 1.5
    backward(watch, engine, model.head)
    assert len(events_in(tmp_path)) == 1
    model.eval()
    model.other = nn.Linear(1, 1).eval()
    backward(watch, engine, model.other)  # without a delay, because the model as a whole has changed
    assert [event["module"] for event in events_in(tmp_path)] == ["head (Linear)", "other (Linear)"]
    backward(watch, engine)
    assert armed == [True, False, True, False]  # backward passes are watched only while there is a suspect


@pytest.mark.parametrize(("version", "seen"), [("0.15.3", ["eval-refused"]), ("0.15.4+cpu", []), ("", [])])
def test_deepspeed_version_determines_the_severity(
    probe: Probe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, seen: list[str]
) -> None:
    armed: list[bool] = []
    watch, model = (
        EvalWatch(probe, armed.append, clock=Turn()),
        Tower(),
    )  # created while DeepSpeed is being imported
    monkeypatch.setitem(sys.modules, "deepspeed", SimpleNamespace(__version__=version))
    model.drop.eval()
    backward(watch, Engine(model), model.drop)
    assert [event["seen"] for event in events_in(tmp_path)] == seen


def test_deepspeed_that_raises_is_reported_with_every_module(probe: Probe, tmp_path: Path) -> None:
    model, armed = Tower(), list[bool]()
    model.drop.eval()
    backward(EvalWatch(probe, armed.append, refused=True, clock=Turn()), Engine(model), model.drop)
    assert [(event["seen"], event["module"]) for event in events_in(tmp_path)] == [
        ("eval-refused", "drop (Dropout)")
    ]


# ---- sums over partitioned parameters


def partitioned(size: int = 0) -> Any:
    """Return a parameter as ZeRO-3 leaves it outside of its module."""
    parameter = nn.Parameter(torch.ones(size))
    parameter.ds_id = 3
    return parameter


def test_sums_over_partitioned_parameters_are_found_under_arithmetic() -> None:
    first, second, real = partitioned(), partitioned(), torch.ones(3, requires_grad=True)
    loss = (real**2).mean() + 0.0 * sum(each.sum() for each in (first, second))
    assert summed_while_partitioned(loss.grad_fn) is second
    assert summed_while_partitioned((loss / 2 + first.pow(2).sum()).grad_fn) is not None
    assert summed_while_partitioned((real.mean() + first.mean().nan_to_num()).grad_fn) is first


def test_other_sums_over_parameters_are_ignored() -> None:
    scale, head = partitioned(1), nn.Linear(3, 1)
    head.weight.ds_id = 4
    loss = (head(torch.ones(2, 3)) * scale).sum() + head.weight.sum()
    scale.data, head.weight.data = torch.empty(0), torch.empty(0)  # partitioned after the forward pass
    assert summed_while_partitioned(loss.grad_fn) is None
    empty = torch.empty(0, requires_grad=True)  # an empty batch, not a parameter of ZeRO-3
    assert summed_while_partitioned((empty.sum() + scale.sum().detach()).grad_fn) is None
    assert summed_while_partitioned(None) is None


def test_traversal_of_the_graph_is_bounded() -> None:
    loss = partitioned().sum()
    for _ in range(1000):
        loss = loss + 1.0
    assert summed_while_partitioned(loss.grad_fn) is None
    assert summed_while_partitioned(loss.grad_fn, most=2000) is not None


def test_losses_are_checked_less_and_less_often(probe: Probe, tmp_path: Path) -> None:
    model = nn.Module()
    model.adapter = nn.ParameterList([partitioned() for _ in range(20)])
    engine, watch, frame = Engine(model), SumWatch(probe), inspect.currentframe()
    assert frame is not None
    for parameter in model.adapter:
        watch.begins(engine, parameter.sum(), frame)
    assert [event["parameter"] for event in events_in(tmp_path)] == [
        f"adapter.{index - 1}" for index in (1, 2, 3, 4, 8, 16)
    ]


# ---- saving


class Base:
    """The parts of a trainer that save."""

    def __init__(self, engine: Any, saves: str = "steps") -> None:
        self.deepspeed, self.model = engine, SimpleNamespace(policy=object())
        self.args = SimpleNamespace(save_strategy=saves, save_steps=500)

    def save_model(self) -> None:
        self.saved = self.deepspeed


class Swapping(Base):
    def save_model(self) -> None:
        whole, self.model = self.model, self.model.policy
        engine, self.deepspeed = self.deepspeed, self.model
        super().save_model()
        self.model, self.deepspeed = whole, engine


class Reading(Base):
    def save_model(self) -> None:
        self.model = self.deepspeed.module
        super().save_model()


def zero3(gathers: bool, stage: int = 3) -> Any:
    return SimpleNamespace(
        zero_gather_16bit_weights_on_model_save=lambda: gathers, zero_optimization_stage=lambda: stage
    )


def test_save_model_that_replaces_the_engine_is_recognized() -> None:
    assert swaps_engine(Swapping(None).save_model) is Swapping.save_model.__code__
    assert swaps_engine(Base(None).save_model) is None
    assert swaps_engine(Reading(None).save_model) is None
    assert swaps_engine(print) is None


def test_engine_can_be_assigned_later() -> None:
    engine, trainer = zero3(True), Base(None)
    assert engine_of(trainer) is None
    trainer.model = engine
    assert engine_of(trainer) is engine


def test_trainers_that_cannot_save_are_reported_at_the_start(probe: Probe, tmp_path: Path) -> None:
    for trainer in (
        Base(zero3(True)),
        Base(zero3(False), "no"),
        Base(zero3(False, stage=2)),
        Swapping(zero3(True, stage=2)),
        Base(None),
        Reading(zero3(True)),
    ):
        look(trainer, probe)
    assert events_in(tmp_path) == []
    look(Base(zero3(False)), probe)
    look(Swapping(zero3(True)), probe)
    look(Swapping(zero3(True), "no"), probe)
    first, second = events_in(tmp_path)  # the third trainer has the same class as the second
    assert (first["rule"], first["saves"]) == ("zero3-weights-not-gathered-notice", "step 500")
    assert (second["rule"], second["trainer"]) == ("zero3-save-unwrapped-model", "Swapping")
    line = Swapping.save_model.__code__.co_firstlineno
    assert second["place"] == f"{__file__}:{line}"


def test_trainer_without_a_model_is_reported() -> None:
    class OnlineTrainer:
        def __init__(self) -> None:
            self.model, self.ref_model, self.reward_model = object(), None, object()
            self.found = self.prepare()

        def prepare(self) -> tuple[str, str]:
            return trainer_without_model(sys._getframe())

    assert OnlineTrainer().found == ("OnlineTrainer", "ref_model")
    assert trainer_without_model(None) == ("", "")


def test_path_is_reported_again_for_a_later_checkpoint(probe: Probe, tmp_path: Path) -> None:
    clock = Turn()
    written = Written(probe, clock)
    for clock.now in (0.0, AGAIN_SECONDS - 1, AGAIN_SECONDS):
        written.report("last.pt", "torch.save")
    events = events_in(tmp_path)
    assert [(event["kind"], event["path"]) for event in events] == [
        ("checkpoint", str(Path("last.pt").absolute()))
    ] * 2


def test_files_of_a_checkpoint_are_reported_as_one_folder(probe: Probe, tmp_path: Path) -> None:
    clock = Turn()
    written = Written(probe, clock)
    for clock.now, name in ((0.0, "optimizer.pt"), (1.0, "scheduler.pt"), (FOLDER_SECONDS, "rng_state.pth")):
        written.report(folder_of(Path("/out/checkpoint-8", name)), "torch.save")
    written.report("/out/checkpoint-8", "trainer")  # the trainer reports that the folder is complete
    assert [(event["path"], event["by"]) for event in events_in(tmp_path)] == [
        ("/out/checkpoint-8", "torch.save"),
        ("/out/checkpoint-8", "torch.save"),
        ("/out/checkpoint-8", "trainer"),
    ]
    assert folder_of(Path("/out/last.pt")) == Path("/out/last.pt")


def test_excess_checkpoints_are_counted(probe: Probe, tmp_path: Path) -> None:
    written = Written(probe, Turn())
    for number in range(MOST_REPORTS + 3):
        written.report(f"/out/{number}.pt", "torch.save")
    assert len(events_in(tmp_path)) == MOST_REPORTS
    (ring,) = map(RingReader, tmp_path.glob("*.ring"))
    ring.read()
    assert ring.dropped_events == 3


def test_trainer_module_is_hooked_although_it_imports_accelerate(probe: Probe) -> None:
    """transformers.trainer imports the accelerator (transformers 5.23.0)."""

    class Trainer:
        pass

    class CallbackHandler:
        def on_train_begin(self) -> None:
            pass

    class Accelerator:
        distributed_type = "NO"

    names = {"Trainer": Trainer, "CallbackHandler": CallbackHandler, "Accelerator": Accelerator}
    watch_trainer(SimpleNamespace(**names), probe)
    assert hasattr(Trainer, "callback_handler")
    assert Accelerator.distributed_type == "NO"
