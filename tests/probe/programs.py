"""Programs with and without the probe.

The libraries here are stand-ins with the parts that the hooks use; the real libraries are in ``tests/repro``.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from optimizer import OPTIMIZER

from stallwatch_exporter.rings.probing import with_probe
from stallwatch_exporter.rings.reader import Record, RingReader

LIBRARIES = {
    "torch/__init__.py": "from torch.optim import optimizer\nimport torch.later\n__version__ = '9.9'\n",
    "torch/later.py": "",
    "torch/optim/__init__.py": "",
    "torch/optim/optimizer.py": OPTIMIZER,
    "deepspeed/__init__.py": "from deepspeed.runtime import engine\nimport deepspeed.later\n",
    "deepspeed/later.py": "",
    "deepspeed/runtime/__init__.py": "",
    "deepspeed/runtime/engine.py": """
from deepspeed.runtime.zero.partitioned_param_coordinator import PartitionedParameterCoordinator
class Module:
    ds_id = 7
    def named_modules(self):
        return [("", self)]
class DeepSpeedEngine:
    def __init__(self):
        self.global_steps, self.micro_steps, self.skipped_steps = 0, 0, 0
        self.module = Module()
        self.coordinator = PartitionedParameterCoordinator()
    def gradient_accumulation_steps(self):
        return 2
    def backward(self, loss):
        if loss < 0:
            raise ValueError("no such loss")
        scaled = loss / self.gradient_accumulation_steps()
        loss = scaled
        self.coordinator.trace_prologue(self.module)
    def step(self):
        self.micro_steps += 1
        if self.micro_steps % self.gradient_accumulation_steps() == 0:
            self._global_grad_norm = 1.5
            self.global_steps += 1
""",
    "deepspeed/runtime/zero/__init__.py": "",
    "deepspeed/runtime/zero/partitioned_param_coordinator.py": """
class PartitionedParameterCoordinator:
    def _invalidate_trace(self):
        pass
    def trace_prologue(self, sub_module):
        self._invalidate_trace()
    def release_and_reset_all(self):
        self._invalidate_trace()
""",
}
ENGINE = """
import torch, deepspeed
engine = deepspeed.engine.DeepSpeedEngine()
for number in range(4):
    engine.backward(1.0 + number)
    engine.step()
"""


class Ran(NamedTuple):
    code: int
    out: bytes
    err: bytes


class Programs:
    """Runner of programs with and without the probe."""

    def __init__(self, tmp_path: Path) -> None:
        self.folder = tmp_path
        self.rings = tmp_path / "rings"
        self.rings.mkdir()
        self.site = tmp_path / "site"
        for name, text in LIBRARIES.items():
            path = self.site / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    def run(self, code: str, *options: str, probe: bool = True, rank: str | None = "0", **more: str) -> Ran:
        program = self.folder / "train.py"
        program.write_text(code)
        environ = {"PATH": os.environ["PATH"], "PYTHONPATH": str(self.site), **more}
        if rank is not None:
            environ["RANK"] = rank
        if probe:
            environ = with_probe(environ, self.rings)
        done = subprocess.run(
            [sys.executable, *options, str(program)], env=environ, capture_output=True, timeout=120
        )
        return Ran(done.returncode, done.stdout, done.stderr)

    def records(self) -> list[Record]:
        return [record for path in self.rings.glob("*.ring") for record in RingReader(path).read().records]

    def steps(self) -> list[Record]:
        return [record for record in self.records() if "step" in record.values]

    def faults(self) -> int:
        readers = [RingReader(path) for path in self.rings.glob("*.ring")]
        assert all(reader.read() for reader in readers)
        return sum(reader.faults for reader in readers)

    def events(self) -> list[dict[str, object]]:
        lines = [line for path in self.rings.glob("*.jsonl") for line in path.read_text().splitlines()]
        return [json.loads(line) for line in lines]
