"""Calls that only one rank makes, and similar patterns that work."""

from __future__ import annotations

from textwrap import dedent

import pytest

from stallwatch_lint.dsconfig import DsConfig
from stallwatch_lint.rank_guard import check_rank_guard
from stallwatch_lint.run import Run
from stallwatch_lint.script import Script, parse_script


def checks_with_lines(text: str, stage: int = 3) -> list[tuple[str, int | None]]:
    script = parse_script(dedent(text), "train.py")
    assert isinstance(script, Script)
    config = DsConfig({"zero_optimization": {"stage": stage}}, "ds.json")
    return [(item.check, item.line) for item in check_rank_guard(script, Run(config))]


@pytest.mark.parametrize(
    "guard",
    [
        "dist.get_rank() == 0",
        "rank == 0",
        "not rank",
        "args.local_rank in (-1, 0)",
        "int(os.environ['RANK']) == 0",
        "int(os.environ.get('LOCAL_RANK', 0)) == 0",
        "accelerator.is_main_process",
        "trainer.is_world_process_zero()",
        "step % 100 == 0 and torch.distributed.get_rank() == 0",
        "not (rank != 0)",
    ],
)
def test_barrier_of_one_rank_is_reported(guard: str) -> None:
    assert checks_with_lines(f"if {guard}:\n    print('saving')\n    dist.barrier()") == [
        ("called-by-one-rank", 3)
    ]
    assert (
        checks_with_lines(f"if {guard}:\n    pass\nelse:\n    dist.barrier()") == []
    )  # rarely intended, and not checked
    assert checks_with_lines(f"if {guard}:\n    print('saving')\ndist.barrier()") == []


@pytest.mark.parametrize(
    "guard",
    [
        "rank == 1",
        "step == 0",
        "dist.get_rank(group) == 0",
        "tp_rank == 0",
        "rank % 8 == 0",
        "rank in (0, 1)",
    ],
)
def test_other_conditions_are_not_reported(guard: str) -> None:
    assert checks_with_lines(f"if {guard}:\n    dist.barrier()") == []


@pytest.mark.parametrize(
    "text",
    [
        """
        if args.local_rank not in (-1, 0):
            torch.distributed.barrier()
        model = load()
        if args.local_rank == 0:
            torch.distributed.barrier()
        """,
        """
        if rank == 0:
            dist.broadcast_object_list([found], src=0)
        else:
            dist.broadcast_object_list(box, src=0)
        """,
        """
        if rank == 0:
            dist.all_reduce(loss, group=leaders)
            dist.barrier(leaders)
        """,
        """
        if rank == 0:
            def finish():
                dist.barrier()
        """,
        """
        if rank == 0:
            wall.barrier()
            functools.reduce(add, parts)
            model.save_pretrained("out")
        """,
    ],
)
def test_valid_patterns_are_not_reported(text: str) -> None:
    assert checks_with_lines(text) == []


def test_collective_save_on_one_rank_is_reported() -> None:
    engine = """
    import deepspeed
    engine, *_ = deepspeed.initialize(model=model, config=c)
    if dist.get_rank() == 0:
        with timer():
            engine.save_checkpoint("out")
        engine.save_16bit_model("out")
    """
    one = "called-by-one-rank"
    assert sorted(checks_with_lines(engine)) == [(one, 6), (one, 7)]
    assert checks_with_lines(engine, stage=2) == [(one, 6)]
    trainer = """
    from transformers import Trainer
    if trainer.is_world_process_zero():
        trainer.save_model("out")
        trainer.save_state()
    """
    assert checks_with_lines(trainer) == [(one, 4)]
    assert checks_with_lines(trainer, stage=2) == []
    assert checks_with_lines("if rank == 0:\n    mine.save_checkpoint('out')") == []


_ENGINE = """
engine, *_ = deepspeed.initialize(model=net, config="ds.json")
module = engine.module
model = accelerator.prepare(model)
if dist.get_rank() == 0:
    """


@pytest.mark.parametrize(
    ("call", "stages"),
    [
        ("out = engine.module.generate(b)", {3}),
        ("out = net.generate(b)", {3}),
        ("loss = engine(b)", {3}),
        ("loss = module.forward(b)", {3}),
        ("out = accelerator.unwrap_model(model).generate(b)", {3}),
        ("state = accelerator.get_state_dict(model)", {3}),
        ("with deepspeed.zero.GatheredParameters(net.parameters()): save(net)", {3}),
        ("engine.backward(loss)", {2, 3}),
        ("engine.step()", {2, 3}),
        ("engine.module.state_dict()", set()),
        ("other.generate(b)", set()),
        ("scheduler.step()", set()),
    ],
)
def test_partitioned_model_on_one_rank_is_reported(call: str, stages: set[int]) -> None:
    assert {stage for stage in (2, 3) if checks_with_lines(_ENGINE + call, stage)} == stages


def test_gathered_or_unpartitioned_model_is_not_reported() -> None:
    assert checks_with_lines("if rank == 0:\n    net(b)\nengine = deepspeed.initialize(model=net)[0]") == []
    gathered = "with zero.GatheredParameters(net.parameters()):\n    if rank == 0:\n        engine(b)"
    assert checks_with_lines("engine = deepspeed.initialize(model=net)[0]\n" + gathered) == []
    both = (
        "engine = deepspeed.initialize(model=net)[0]\nif rank == 0:\n    a = engine(b)\nelse:\n    engine(b)"
    )
    assert checks_with_lines(both) == []


_ALONE = "    if rank == 0:\n        print(model.generate(b))\n"
_TRAINS = "    engine, *_ = deepspeed.initialize(model=model)\n"


@pytest.mark.parametrize(
    ("body", "count"),
    [
        (_TRAINS + _ALONE, 1),
        (_TRAINS + "    model = AutoModel.from_pretrained('out')\n" + _ALONE, 0),
        (_TRAINS + "    for model in models:\n        pass\n" + _ALONE, 0),
        (_TRAINS + "    sizes = [size(model) for model in models]\n" + _ALONE, 1),
        (_TRAINS + "    model = model.eval()\n" + _ALONE, 1),
        (_TRAINS + "    model = AutoModel()\n    model = engine\n" + _ALONE, 1),
        (_TRAINS + "def evaluate():\n    model = AutoModel.from_pretrained('out')\n" + _ALONE, 0),
        (_TRAINS + "def evaluate(model):\n" + _ALONE, 0),
        (_TRAINS + "    def evaluate():\n        if rank == 0:\n            model.generate(b)\n", 1),
        ("    if ds:\n    " + _TRAINS + "    else:\n        model = DDP(model)\n" + _ALONE, 1),
        ("    if ds:\n    " + _TRAINS + "    elif rank == 0:\n        model.generate(b)\n", 0),
    ],
)
def test_model_name_is_followed_until_reassignment_within_its_function(body: str, count: int) -> None:
    assert len(checks_with_lines("def main():\n    model = Net()\n" + body)) == count


def test_model_attribute_belongs_to_its_class() -> None:
    trainer = """
    class Trainer:
        def __init__(self):
            self.engine, *_ = deepspeed.initialize(model=self.model)
        def show(self):
            if rank == 0:
                self.model.generate(b)
                self.engine.step()
    class Tester:
        def show(self):
            if rank == 0:
                self.model.generate(b)
    """
    assert [line for _, line in checks_with_lines(trainer)] == [7, 8]
