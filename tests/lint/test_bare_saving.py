"""Weights partitioned by ZeRO-3 that are saved without the engine, and similar code that works."""

from __future__ import annotations

from textwrap import dedent

import pytest

from stallwatch_lint.dsconfig import DsConfig
from stallwatch_lint.run import Run
from stallwatch_lint.saving import check_bare_saving
from stallwatch_lint.script import Script, parse_script

TRAINER = "from transformers import Trainer\nimport torch\nt = Trainer(model=net, args=a)\n"
TRAINED = TRAINER + "t.train()\n"
STARTED = "import deepspeed as ds\ne, *_ = ds.initialize(model=net)\n"
PREPARED = "from accelerate import Accelerator\na = Accelerator()\nnet, opt = a.prepare(net, opt)\n"


def lines_found(text: str, stage: int = 3) -> list[int | None]:
    script = parse_script(dedent(text), "train.py")
    assert isinstance(script, Script)
    config = DsConfig({"zero_optimization": {"stage": stage}}, "ds.json")
    return [item.line for item in check_bare_saving(script, Run(config))]


@pytest.mark.parametrize(
    "text",
    [
        TRAINED + "torch.save(net.state_dict(), 'f')",
        TRAINED + "net.save_pretrained('f')",
        TRAINED + "if t.is_world_process_zero():\n    net.save_pretrained('f')",
        TRAINED + "torch.save(t.model.state_dict(), 'f')",
        TRAINED + "torch.save(t.accelerator.unwrap_model(t.model_wrapped).state_dict(), 'f')",
        TRAINED + "m = t.model\nm.save_pretrained('f')",
        TRAINED + "state = t.model.state_dict()\nif rank == 0:\n    torch.save({'net': state}, 'f')",
        "def save(t):\n    t.model.save_pretrained('f')\n" + TRAINED + "save(t)",
        TRAINER + "class Own(Trainer):\n    def _save(self, out):\n        self.model.save_pretrained(out)",
        PREPARED + "torch.save(net.state_dict(), 'f')",
        PREPARED + "a.unwrap_model(net).save_pretrained('f')",
        STARTED + "torch.save(e.module.state_dict(), 'f')",
        "import accelerate\n" + STARTED + "e.module.save_pretrained('f')",
        STARTED + "def save(net):\n    torch.save(net.state_dict(), 'f')",
    ],
)
def test_code_that_saves_empty_weights_is_reported(text: str) -> None:
    assert len(lines_found(text)) == 1
    assert lines_found(text, stage=2) == []


@pytest.mark.parametrize(
    "text",
    [
        TRAINER + "net.save_pretrained('f')\ntorch.save(t.model.state_dict(), 'f')\nt.train()",
        TRAINED + "t.save_model('f')\nt.tokenizer.save_pretrained('f')",
        TRAINED + "net.save_pretrained('f', state_dict=t.accelerator.get_state_dict(t.model_wrapped))",
        TRAINED + "net = AutoModel.from_pretrained('f')\nnet.save_pretrained('g')",
        TRAINED + "shapes = t.model.state_dict()\nprint(shapes)",
        TRAINED + "if not t.is_deepspeed_enabled:\n    t.model.save_pretrained('f')",
        TRAINED + "if zero_stage != 3:\n    t.model.save_pretrained('f')",
        "import peft\n" + TRAINED + "t.model.save_pretrained('f')",
        TRAINED
        + "import deepspeed\nwith deepspeed.zero.GatheredParameters(ps):\n    net.save_pretrained('f')",
        PREPARED + "torch.save(opt.state_dict(), 'f')",
        PREPARED + "net.save_pretrained('f', state_dict=a.get_state_dict(net))",
        "def save(m):\n    m.save_pretrained('f')\n" + TRAINER,
        STARTED + "def merge():\n    net = merged()\n    torch.save(net.state_dict(), 'f')",
    ],
)
def test_code_that_saves_whole_weights_is_not_reported(text: str) -> None:
    assert lines_found(text) == []
