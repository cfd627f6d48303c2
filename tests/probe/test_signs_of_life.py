"""Activity of a rank by its model and data loader: real torch, without a trainer that reports phases."""

from __future__ import annotations

import json

from ranks import Trained, needs, trains

#: Prints the probe's current values under a name.
SHOWS = """
import json, sys, torch
from torch import nn
from torch.utils.data import DataLoader
from stallwatch_probe.api import current
from stallwatch_probe.draft import INDEX
told = {}
def show(name, *fields):
    probe = current()
    values = [probe.row[INDEX[field]] for field in fields]
    told[name] = [probe.doing, *(value if value == value else None for value in values)]
def step(model, optimizer, times=1):
    for _ in range(times):
        model(torch.ones(2, 4)).sum().backward()
    optimizer.step(); optimizer.zero_grad()
"""


def shown_by(one: Trained) -> dict[str, list[object]]:
    found: dict[str, list[object]] = json.loads(one.printed.splitlines()[-1])
    return found


FOLDS = (
    f"{SHOWS}"
    "def fold():\n"
    "    model, head = nn.Linear(4, 1), nn.Linear(4, 1)\n"
    "    one, two = (torch.optim.SGD(each.parameters(), 0.1) for each in (model, head))\n"
    "    for _ in range(30):\n"
    "        step(model, one); step(head, two)\n"
    "fold(); fold()\n"
)
SWITCHES = (
    f"{SHOWS}"
    "class Frozen(nn.BatchNorm1d):\n"
    "    def train(self, mode=True): return super().train(False)\n"
    "class Keeps(nn.Module):\n"
    "    def __init__(self):\n"
    "        super().__init__()\n"
    "        self.a = nn.Linear(4, 4); self.norm = nn.BatchNorm1d(4); self.b = Frozen(4)\n"
    "    def forward(self, x): return self.b(self.norm(self.a(x)))\n"
    "    def train(self, mode=True):\n"
    "        super().train(mode); self.norm.eval(); return self\n"
    "model = Keeps()\n"
    "reference = nn.Linear(4, 1).eval()\n"
    "optimizer = torch.optim.SGD(model.parameters(), 0.1)\n"
    "model.eval(); model.train(); show('before')\n"
    "step(model, optimizer); show('step', 'switches')\n"
    "model.train(); reference.eval(); model.a.eval(); show('parts', 'switches')\n"
    "import copy; copy.deepcopy(model).eval(); show('average', 'switches')\n"
    "def evaluate(model):\n"
    "    model.eval()\n"
    "    with torch.inference_mode(): model(torch.ones(2, 4))\n"
    "evaluate(model); show('eval', 'switches')\n"
    "def train(self, mode=True):\n"  # the user's own loop with the same name
    "    model.train(mode)\n"
    "train(None); show('train', 'switches')\n"
    "model.train(False); show('train(False)', 'switches')\n"
    "step(model, optimizer); show('stepped', 'switches')\n"
    "wrapped = nn.Sequential(model); wrapped.train()\n"
    "model.eval(); show('inner', 'switches')\n"
    "for module in model.modules(): module.training = True\n"  # as Lightning does
    "next(iter(DataLoader([1]))); show('restored', 'switches')\n"
    "lone = nn.Linear(4, 1); other = torch.optim.SGD(lone.parameters(), 0.1); step(lone, other)\n"
    "lone.train(False); next(iter(DataLoader([1]))); show('lone', 'switches')\n"
    "step(lone, other)\n"
    "from torch.nn.parallel import DistributedDataParallel\n"
    "store = torch.distributed.HashStore()\n"
    "torch.distributed.init_process_group('gloo', rank=0, world_size=1, store=store)\n"
    "ddp = DistributedDataParallel(nn.Linear(4, 1)); owner = torch.optim.SGD(ddp.parameters(), 0.1)\n"
    "step(ddp, owner); ddp.eval(); show('ddp'); ddp.train(); show('ddp trains')\n"
    "from torch.distributed.fsdp import fully_shard\n"
    "mesh = torch.distributed.device_mesh.init_device_mesh('cpu', (1,))\n"
    "sharded = fully_shard(nn.Sequential(nn.Linear(4, 1)), mesh=mesh)\n"
    "owner = torch.optim.SGD(sharded.parameters(), 0.1)\n"
    "step(sharded, owner); sharded.eval(); show('fsdp'); sharded.train(); show('fsdp trains')\n"
    "print(json.dumps(told))\n"
)

SAVES = (
    f"{SHOWS}"
    "import io, threading\n"
    "model = nn.Linear(4, 1); optimizer = torch.optim.SGD(model.parameters(), 0.1)\n"
    "torch.save(model.state_dict(), sys.argv[1]); show('before')\n"
    "step(model, optimizer)\n"
    "thread = threading.Thread(target=torch.save, args=(model.state_dict(), sys.argv[1]))\n"
    "thread.start(); thread.join(); show('beside')\n"
    "torch.save(model.state_dict(), sys.argv[1]); show('save')\n"
    "loader = DataLoader(torch.ones(8, 4), batch_size=2)\n"
    "for batch in loader: show('batch', 'batches'); break\n"
    "model.eval(); torch.save(model.state_dict(), sys.argv[1]); show('within')\n"
    "for batch in loader: show('evaluates'); break\n"
    "import safetensors.torch, safetensors.numpy\n"
    "step(model, optimizer)\n"
    "safetensors.torch.save_file(model.state_dict(), sys.argv[1]); show('safetensors')\n"
    "step(model, optimizer); show('end')\n"
    "print(json.dumps(told))\n"
)

BATCHES = (
    f"{SHOWS}"
    "from torch.utils.data import IterableDataset\n"
    "class Nested(IterableDataset):\n"
    "    def __iter__(self): return iter(DataLoader(torch.ones(6, 4), batch_size=2))\n"
    "model = nn.Linear(4, 1); optimizer = torch.optim.SGD(model.parameters(), 0.1)\n"
    "COUNTS = 'batches', 'epochs', 'epoch_batches'\n"
    "loader = DataLoader(torch.ones(8, 4), batch_size=2)\n"
    "iterator = iter(loader); show('begun', *COUNTS)\n"
    "next(iterator); show('asked', *COUNTS)\n"
    "for _ in iterator: pass\n"
    "show('whole', *COUNTS)\n"
    "workers = DataLoader(Nested(), batch_size=None, num_workers=1, persistent_workers=True)\n"
    "if __name__ == '__main__':\n"
    "    for epoch in range(2):\n"
    "        for batch in workers:\n"
    "            if epoch: break\n"
    "    show('persistent', *COUNTS)\n"
    "    for batch in workers:\n"
    "        model(torch.ones(2, 4)).sum().backward()\n"
    "    optimizer.step(); show('accumulated', *COUNTS)\n"
    "    spawned = DataLoader(Nested(), batch_size=None, num_workers=1, multiprocessing_context='spawn')\n"
    "    assert len(list(spawned)) == 3\n"
    "    show('spawned', *COUNTS)\n"
    "    print(json.dumps(told))\n"
)


LIGHTNING = SHOWS + (
    "import lightning as L\n"
    "class Model(L.LightningModule):\n"
    "    def __init__(self): super().__init__(); self.layer = nn.Linear(4, 1)\n"
    "    def training_step(self, batch, index): return self.layer(batch).pow(2).mean()\n"
    "    def validation_step(self, batch, index): show(f'validation {self.global_step}')\n"
    "    def on_train_batch_start(self, *_): show(f'epoch {self.current_epoch}')\n"
    "    def configure_optimizers(self): return torch.optim.SGD(self.parameters(), lr=0.125)\n"
    "data = DataLoader(torch.ones(8, 4), batch_size=2)\n"
    "trainer = L.Trainer(accelerator='cpu', max_steps=8, check_val_every_n_epoch=1, logger=False,\n"
    "    enable_progress_bar=False, enable_model_summary=False, default_root_dir=sys.argv[1])\n"
    "trainer.fit(Model(), data, data)\n"
    "print(json.dumps(told))\n"
)


class TestLightning:
    pytestmark = needs("lightning")

    @trains(LIGHTNING)
    def test_validation_of_lightning_is_an_evaluation(self, trained: list[Trained]) -> None:
        assert shown_by(trained[0]) == {
            "validation 0": ["init"],
            "epoch 0": ["train"],
            "validation 4": ["eval"],
            "epoch 1": ["train"],
            "validation 8": ["eval"],
        }


class TestTorch:
    pytestmark = needs("torch", "safetensors")

    @trains(SWITCHES)
    def test_model_that_is_switched_to_evaluation_is_evaluated(self, trained: list[Trained]) -> None:
        """The switch counts only after the first step, and not for parts or copies of the model."""
        assert shown_by(trained[0]) == {
            "before": ["init"],
            "step": ["train", None],
            "parts": ["train", None],
            "average": ["train", None],
            "eval": ["eval", 1],
            "train": ["train", 2],
            "train(False)": ["eval", 3],
            "stepped": ["train", 3],
            "inner": ["eval", 5],
            "restored": ["train", 6],
            "lone": ["eval", 7],
            "ddp": ["eval"],
            "ddp trains": ["train"],
            "fsdp": ["eval"],
            "fsdp trains": ["train"],
        }

    @trains(SAVES)
    def test_saves_after_the_first_step_are_phases(self, trained: list[Trained]) -> None:
        """The phase ends with the next batch; within an evaluation, the evaluation continues."""
        found = shown_by(trained[0])
        assert [found[name][0] for name in ("before", "beside", "save", "batch")] == [
            "init",
            "train",
            "save",
            "train",
        ]
        assert [found[name][0] for name in ("within", "evaluates", "safetensors", "end")] == [
            "save",
            "eval",
            "save",
            "train",
        ]

    @trains(BATCHES)
    def test_batches_are_counted_where_they_are_handed_out(self, trained: list[Trained]) -> None:
        assert shown_by(trained[0]) == {
            "begun": ["init", 0, 1, 0],
            "asked": ["init", 0, 1, 0],
            "whole": ["init", 4, 1, 4],
            "persistent": ["init", 7, 3, 0],
            "accumulated": ["train", 10, 4, 3],
            "spawned": ["train", 13, 5, 3],
        }

    @trains(FOLDS)
    def test_each_training_after_the_first_is_announced(self, trained: list[Trained]) -> None:
        """Alternating optimizers belong to the same training."""
        events = "".join(path.read_text() for path in trained[0].ranks.rings.glob("*.jsonl"))
        assert [json.loads(line)["kind"] for line in events.splitlines()].count("training") == 1
