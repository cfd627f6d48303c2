"""The code that made a value determines its kind, whatever the variable's name."""

from __future__ import annotations

from textwrap import dedent

import pytest

from stallwatch_lint.check_run import check_run
from stallwatch_lint.dsconfig import DsConfig
from stallwatch_lint.script import Script, parse_script

IMPORTS = "from transformers import Trainer, Trainer as T\nfrom accelerate import Accelerator\nimport trl\n"


def checks_found(text: str) -> list[str]:
    script = parse_script(IMPORTS + dedent(text), "train.py")
    assert isinstance(script, Script)
    config = DsConfig(
        {"zero_optimization": {"stage": 3, "stage3_gather_16bit_weights_on_model_save": True}}, "ds.json"
    )
    return [item.check for item in check_run(config, [script]) if item.file == "train.py"]


@pytest.mark.parametrize(
    "made",
    [
        "t = Trainer(model=m)",
        "t: object = trl.SFTTrainer(m)",
        "t, n = T(m), 3",
        "x = Trainer(m)\nt = x",
        "t = Trainer(m) if full else T(m)",
        "class Mine(Trainer):\n    pass\nclass Own(Mine): pass\nt = Own(m)",
        "def build():\n    made = Trainer(m)\n    return made\nt = build()",
    ],
)
def test_trainer_is_recognized_under_any_name(made: str) -> None:
    assert checks_found(made + "\nif t.is_world_process_zero():\n    t.save_model('out')") == [
        "called-by-one-rank"
    ]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("def save(t):\n    if rank == 0:\n        t.save_model('o')\na = Trainer(m)\nsave(a)", True),
        ("def save(t: Trainer):\n    if rank == 0:\n        t.save_model('o')", True),
        ("def save(t):\n    if rank == 0:\n        t.save_model('o')", False),
        (
            "class C(Trainer):\n    def end(self):\n        if rank == 0:\n            self.save_model('o')",
            True,
        ),
        ("class C:\n    def end(self):\n        if rank == 0:\n            self.save_model('o')", False),
        ("class C:\n    pass\ntrainer = C()\nif rank == 0:\n    trainer.save_model('o')", False),
        ("import lightning as L\ntrainer = L.Trainer()\nif rank == 0:\n    trainer.save_model('o')", False),
        ("if rank == 0:\n    trainer.save_model('o')", True),  # made elsewhere
        ("a = Accelerator()\nif a.is_main_process:\n    a.wait_for_everyone()", True),
        (
            "class C:\n    def f(self):\n        self.a = Accelerator()\n"
            "        if rank == 0:\n            self.a.get_state_dict(m)",
            True,
        ),
        ("accelerated = run()\nif rank == 0:\n    accelerated.gather(1, index)", False),
        ("if rank == 0:\n    self.accelerator.gather(x)", True),
        ("import torch.distributed as td\nif td.get_rank() == 0:\n    td.barrier()", True),
        ("from mine.comm import broadcast\nif rank == 0:\n    broadcast('it begins')", False),
        ("import mine.comm as chat\nif rank == 0:\n    chat.broadcast('it begins')", False),
        ("from deepspeed.comm import broadcast\nif rank == 0:\n    broadcast(x, 0)", True),
        ("from torch.distributed import barrier as wait\nif rank == 0:\n    wait()", True),
        ("from torch.distributed import barrier\nif rank == 0:\n    barrier()", True),
        ("import torch.distributed as td\nr = td.get_rank()\nif r == 0:\n    td.barrier()", True),
        ("import torch.distributed as td\nmain = rank == 0\nif main:\n    td.barrier()", True),
        ("import torch.distributed as td\nmain = rank != 0\nif not main:\n    td.barrier()", True),
        ("import torch.distributed as td\nmain = rank != 0\nif main:\n    td.barrier()", False),
    ],
)
def test_assignments_are_followed(text: str, found: bool) -> None:
    assert checks_found(text) == (["called-by-one-rank"] if found else [])


WRAPPED = """
import deepspeed
class Engine:
    def __init__(self, net):
        self.inner, *_ = deepspeed.initialize(model=net)
    {}
made = Engine(net)
if rank == 0:
    made.save_checkpoint("o")
"""


@pytest.mark.parametrize(
    ("method", "found"),
    [
        ("def save_checkpoint(self, to): self.inner.save_checkpoint(to)", True),
        ("def save_checkpoint(self, to): self.write(to)\n    def write(self, to):"
         " self.inner.save_checkpoint(to)", True),
        ("def __getattr__(self, name): return getattr(self.inner, name)", True),
        ("def save_checkpoint(self, to): torch.save(self.step, to)", False),
    ],
)  # fmt: skip
def test_wrapper_class_is_treated_like_the_engine(method: str, found: bool) -> None:
    assert checks_found(WRAPPED.format(method)) == (["called-by-one-rank"] if found else [])


@pytest.mark.parametrize(
    "again", ["import main", "from mine import go as main", "def main(): ...", "main = 1"]
)
def test_reassigned_name_is_not_reported(again: str) -> None:
    guard = "import torch.distributed as td\nmain = rank == 0\n{}\nif main:\n    td.barrier()"
    assert checks_found(guard.format(again)) == []
    assert checks_found(guard.format("class C:\n    def main(self): ...")) == ["called-by-one-rank"]


def test_import_aliases_of_deepspeed_are_recognized() -> None:
    assert checks_found("import deepspeed as ds\nds.initialize(model=None)") == ["initialize-without-model"]
    assert checks_found("from deepspeed import initialize as start\nstart(model=None)") == [
        "initialize-without-model"
    ]
    assert checks_found("from mine import initialize\ninitialize(model=None)") == []
