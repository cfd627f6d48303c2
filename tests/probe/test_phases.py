"""Phases of a rank besides training, from the real libraries without changes of the training code."""

from __future__ import annotations

import math
import sys
import threading
import weakref
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import pytest
from ranks import TINY, Program, Trained, needs, trains

from stallwatch_exporter.probe import api
from stallwatch_exporter.probe.answers import counters
from stallwatch_exporter.probe.api import Probe
from stallwatch_exporter.probe.hooks.phases import PhaseTracker
from stallwatch_exporter.probe.hooks.transformers import TrainerWatch, install
from stallwatch_exporter.probe.imports import HOOKS
from stallwatch_exporter.probe.imports import PHASES as BEGINNINGS
from stallwatch_exporter.probe.layout import PHASES


def test_every_hook_exists_and_begins_a_known_phase() -> None:
    for hook in {name for names in HOOKS.values() for name in names}:
        file, _, install = hook.partition(".")
        assert callable(getattr(import_module(f"stallwatch_exporter.probe.hooks.{file}"), install)), hook
    assert {phase for calls in BEGINNINGS.values() for _, _, phase in calls} <= {*PHASES}


# ---- order of the phases


def doing(tmp_path: Path) -> tuple[Probe, PhaseTracker]:
    probe = Probe(tmp_path, {"RANK": "0"})
    return probe, PhaseTracker(probe)


def test_run_is_starting_until_its_first_step(tmp_path: Path) -> None:
    probe, found = doing(tmp_path)
    found.begin("eval", surely=True)
    found.train()
    assert probe.doing == "init"
    probe.step()
    found.begin("save")
    found.train()
    assert probe.doing == "train"


def test_saving_thread_is_not_taken_for_the_training_thread(tmp_path: Path) -> None:
    probe, found = doing(tmp_path)
    found.train()
    probe.step()
    saving = threading.Thread(target=found.begin, args=("save",))
    saving.start()
    saving.join()
    assert probe.doing == "train"
    found.begin("save")
    assert probe.doing == "save"


def test_longest_save_of_each_function_is_recorded(tmp_path: Path) -> None:
    now = [100.0]
    probe = Probe(tmp_path, {"RANK": "0"}, clock=lambda: now[0])
    seen = PhaseTracker(probe)

    def keep_best(seconds: float) -> None:
        seen.begin("save", frame=sys._getframe())
        now[0] += seconds
        seen.train()

    seen.train()
    probe.step()
    keep_best(2.0)
    assert "saves" not in counters(probe), "once is no habit"
    for seconds in (5.0, 3.0):
        keep_best(seconds)
    assert counters(probe)["saves"] == {"keep_best": 5.0}
    seen.begin("save", frame=sys._getframe())
    now[0] += 4.0
    seen.begin("eval")
    now[0] += 1000.0
    seen.begin("save", frame=sys._getframe())
    probe.step()  # the step ended the save at an unknown time
    now[0] += 1000.0
    seen.train()
    own = "test_longest_save_of_each_function_is_recorded"
    assert probe.saves[own] == (1, 4.0)


def test_generation_during_an_evaluation_is_not_a_rollout(tmp_path: Path) -> None:
    probe, found = doing(tmp_path)
    probe.step()
    found.begin("eval", surely=True)
    found.begin("rollout")
    assert probe.doing == "eval"
    found.train()
    found.begin("rollout")
    assert probe.doing == "rollout"
    probe.step()
    found.begin("eval")  # rollouts are also sampled in evaluation mode
    found.begin("rollout")
    assert probe.doing == "rollout"


def test_logged_tensor_is_not_waited_for(tmp_path: Path) -> None:
    waited: list[bool] = []

    class OnDevice:
        device = SimpleNamespace(type="accelerator")

        def __float__(self) -> float:
            waited.append(True)
            return 1.0

    TrainerWatch(Probe(tmp_path, {"RANK": "0"})).on_log(
        None, {"logs": {"loss": OnDevice(), "grad_norm": "0.5"}}
    )
    assert waited == []


def test_compilation_during_a_run_is_a_phase_that_ends(tmp_path: Path) -> None:
    probe, found = doing(tmp_path)
    probe.step()
    found.compiling()
    assert probe.doing == "init"
    found.compiled()
    assert probe.doing == "train"
    found.begin("eval", surely=True)
    found.compiling()
    found.compiled()
    assert probe.doing == "eval"


# ---- real trainers


class TestFrames:
    pytestmark = needs("transformers")

    def test_hook_keeps_no_references_to_objects_of_an_evaluation(self, tmp_path: Path) -> None:
        """Until Python 3.12, ``f_locals`` keeps a copy of the frame's locals while the frame runs."""
        library = import_module("transformers.trainer_callback")
        handler_class = type("Handler", (library.CallbackHandler,), dict(vars(library.CallbackHandler)))
        probe = Probe(tmp_path, {"RANK": "0"})
        install(SimpleNamespace(CallbackHandler=handler_class), probe)
        handler = handler_class([library.DefaultFlowCallback()], None, None, None, None)
        state, control = library.TrainerState(), library.TrainerControl()

        def evaluate() -> None:
            batch = {0.5}  # sets support weak references
            gone = weakref.ref(batch)
            handler.on_prediction_step(None, state, control)
            del batch
            assert gone() is None

        evaluate()
        assert probe.doing == "eval"


EVALUATED_AND_SAVED = [
    "init",  # recorded as soon as torch is imported
    "step 1",
    "step 2",
    "eval",
    "save",
    "train",
    "step 3",
    "step 4",
    "eval",
    "save",
    "idle",
]


TRAINING = TINY + "import stallwatch\ntrainer(sys.argv[1]).train()\n"
WITH_CALLBACK = TINY + "import stallwatch\ntrainer(sys.argv[1], callbacks=[stallwatch.Callback()]).train()\n"
ALONE = TINY + (
    "import stallwatch, urllib.request\n"
    "trainer(sys.argv[1], [stallwatch.Callback('mine')]).train()\n"
    "from stallwatch.integrations import loop\n"
    "loop._served.look()\n"
    "print(urllib.request.urlopen(loop.endpoint()).read().decode())\n"
)
RESUMED = TINY + (
    "one = trainer(sys.argv[1]); one.args.max_steps = 2; one.train()\n"
    "trainer(sys.argv[1]).train(resume_from_checkpoint=True)\n"
)
PLAIN = TINY + (
    "import torch.distributed.checkpoint as dcp\n"
    "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
    "def step():\n"
    "    model(**{name: value[None] for name, value in Data()[0].items()}).loss.backward()\n"
    "    optimizer.step(); optimizer.zero_grad()\n"
    "step()\n"
    "model.generate(torch.ones(1, 2, dtype=torch.long), max_new_tokens=2, pad_token_id=0)\n"
    "step()\n"
    "dcp.save({'model': model.state_dict()}, checkpoint_id=sys.argv[1])\n"
    "step()\n"
    "dcp.load({'model': model.state_dict()}, checkpoint_id=sys.argv[1])\n"
)


DIVERGED = TINY + (
    "from transformers import TrainerCallback\n"
    "class Diverges(TrainerCallback):\n"
    "    def on_step_begin(self, *_, model, **__): next(model.parameters()).data.fill_(float('nan'))\n"
    "one = trainer(sys.argv[1], [Diverges()]); one.args.logging_steps = 100; one.train()\n"
)


class TestTrainer:
    pytestmark = needs("transformers", "accelerate")

    @trains(TRAINING, WITH_CALLBACK)
    def test_trainer_reports_steps_evaluations_and_checkpoints(self, trained: list[Trained]) -> None:
        """The trainer runs unchanged, and with Stallwatch's callback."""
        for item in trained:
            assert item.ranks.phases() == EVALUATED_AND_SAVED
            records = [each.values for each in item.ranks.records()]
            last = next(values for values in reversed(records) if "step" in values)
            assert last["target_steps"] == 4
            assert all("loss" in values for values in records if values.get("step", 0) in (2, 4))

    @trains(DIVERGED)
    def test_loss_that_is_not_a_number_is_reported_before_the_trainer_logs(
        self, trained: list[Trained]
    ) -> None:
        steps = [each.values for each in trained[0].ranks.records() if "step" in each.values]
        assert any(math.isnan(values.get("loss", 0.0)) for values in steps)

    @trains(Program(ALONE, probe=False, port="0"))
    def test_callback_serves_metrics_without_an_agent(self, trained: list[Trained]) -> None:
        page = trained[0].printed.splitlines()
        assert 'stallwatch_step{run="mine"} 4.0' in page
        assert 'stallwatch_target_steps{run="mine"} 4.0' in page
        assert 'stallwatch_phase{run="mine",stallwatch_phase="idle"} 1.0' in page
        assert any(line.startswith('stallwatch_rank_resident_bytes{rank="0"') for line in page)

    @trains(RESUMED)
    def test_resumed_trainer_continues_from_the_step_of_its_checkpoint(self, trained: list[Trained]) -> None:
        assert [found for found in trained[0].ranks.phases() if found.startswith("step")] == [
            "step 1",
            "step 2",
            "step 3",
            "step 4",
        ]

    @trains(PLAIN)
    def test_sampling_and_a_torch_checkpoint_in_a_plain_loop(self, trained: list[Trained]) -> None:
        assert trained[0].ranks.phases() == [
            "init",
            "step 1",
            "rollout",
            "train",
            "step 2",
            "save",
            "train",
            "step 3",
            "init",
        ]


# ---- losses of plain loops

LOOP = """
import sys, torch
weight = torch.nn.Parameter(torch.tensor([2.0]))
optimizer = torch.optim.SGD([weight], lr=0.0)
"""


ACCUMULATED_AND_SCALED = LOOP + (
    "for part in (0.5, 1.0, 1.5): (weight * part).sum().backward()\n"
    "optimizer.step()\n"
    "scaler = torch.amp.GradScaler('cpu')\n"
    "scaler.scale((weight * 1.5).sum()).backward()\nscaler.step(optimizer); scaler.update()\n"
)
STAGES = LOOP + (
    "import time\n"
    "def step(begin): time.sleep(0.06); begin(); optimizer.step()\n"
    "for _ in range(3): step(lambda: (weight * 1.5).sum().backward())\n"
    "for _ in range(3): step(lambda: (weight * torch.ones(2)).backward(torch.ones(2)))\n"
)
TRACEBACKS = LOOP + (
    "import traceback\n"
    "@torch.compile(backend='eager')\n"
    "def train(x):\n"
    "    loss = (weight * x).sum(); loss.backward(); return loss.detach()\n"
    "print(train(torch.ones(3)), weight.grad, torch.Tensor.backward.__qualname__)\n"
    "try: torch.ones(2).sum().backward()\n"
    "except RuntimeError: print(traceback.format_exc())\n"
)
COMPILED = LOOP + (
    "compiled = torch.compile(lambda x: (weight * x).sum(), backend='eager')\n"
    "for size in (2, 2, 3):\n"
    "    compiled(torch.ones(size, 1)).backward(); optimizer.step()\n"
)


class TestPlainLoops:
    pytestmark = needs("torch")

    @trains(ACCUMULATED_AND_SCALED)
    def test_parts_of_a_loss_are_added_and_scaled_losses_are_not_reported(
        self, trained: list[Trained]
    ) -> None:
        records = trained[0].ranks.records()
        accumulated, scaled = [each.values for each in records if "step" in each.values]
        assert (accumulated["loss"], accumulated["learning_rate"]) == (6.0, 0.0)
        assert "loss" not in scaled

    @trains(STAGES)
    def test_time_before_the_backward_pass_is_known_only_with_a_loss(self, trained: list[Trained]) -> None:
        steps = [each.values for each in trained[0].ranks.records() if "step" in each.values]
        assert ["own_seconds" in each for each in steps] == [False, True, True, False, False, False]
        assert steps[1]["own_seconds"] >= 0.05

    @trains(TRACEBACKS, Program(TRACEBACKS, probe=False))
    def test_tracebacks_and_compiled_code_are_those_of_a_run_without_probe(
        self, trained: list[Trained]
    ) -> None:
        watched, plain = (item.printed.replace(str(item.ranks.folder), "") for item in trained)
        assert watched == plain
        assert "does not require grad" in plain

    @trains(COMPILED)
    def test_compilation_is_a_phase(self, trained: list[Trained]) -> None:
        assert trained[0].ranks.phases()[-3:] == ["init", "train", "step 3"]


LIGHTNING = (
    "import sys, torch, stallwatch, lightning as L\n"
    "class Model(L.LightningModule):\n"
    "    def __init__(self): super().__init__(); self.layer = torch.nn.Linear(4, 1)\n"
    "    def training_step(self, batch, index): return self.layer(batch).pow(2).mean()\n"
    "    def validation_step(self, batch, index): self.log('v', self.layer(batch).mean())\n"
    "    def configure_optimizers(self): return torch.optim.SGD(self.parameters(), lr=0.125)\n"
    "data = torch.utils.data.DataLoader(torch.ones(16, 4), batch_size=2)\n"
    "trainer = L.Trainer(accelerator='cpu', max_steps=4, val_check_interval=4, logger=False,\n"
    "    accumulate_grad_batches=2, callbacks=[stallwatch.LightningCallback()],\n"
    "    enable_progress_bar=False, enable_model_summary=False, default_root_dir=sys.argv[1])\n"
    "trainer.fit(Model(), data, data)\n"
)


class TestLightning:
    pytestmark = needs("lightning")

    def test_errors_of_the_callback_are_counted_and_do_not_end_the_training(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        probe = Probe(tmp_path, {"RANK": "0"})
        monkeypatch.setattr(api, "_current", probe)
        monkeypatch.setenv(api.FOLDER_VARIABLE, str(tmp_path))
        callback = import_module("stallwatch.integrations.lightning").LightningCallback()
        callback.on_train_start(SimpleNamespace(global_step=3), None)  # no `estimated_stepping_batches`
        callback.on_train_batch_end(SimpleNamespace(), None, None, None, 0)
        assert probe._faults == 2
        assert probe.steps == 3.0 and probe.reported_by_user

    @trains(LIGHTNING)
    def test_lightning_trainer_reports_steps_losses_and_phases(self, trained: list[Trained]) -> None:
        ranks = trained[0].ranks
        steps = [each.values for each in ranks.records() if "step" in each.values]
        assert [each["step"] for each in steps] == [1, 2, 3, 4]
        assert all(each["loss"] >= 0 and each["learning_rate"] == 0.125 for each in steps)
        assert steps[0]["target_steps"] == 4
        found = ranks.phases()
        # The trainer's sanity check comes before the training.
        assert found[:3] == ["init", "eval", "init"] and found[-1] == "idle"
        assert found[found.index("step 2") + 1] == "eval" and "save" in found
