"""A torch with only an optimizer step, for tests of the probe: the real import takes seconds."""

from __future__ import annotations

from pathlib import Path

#: ``torch/optim/optimizer.py``
OPTIMIZER = """
_hooks = []
def register_optimizer_step_post_hook(hook):
    _hooks.append(hook)
class Optimizer:
    param_groups = [{"lr": 0.25}]
    def step(self):
        for hook in _hooks:
            hook(self, (), {})
"""
#: Lines of a program that create `optimizer`.
MADE = "import torch.optim.optimizer\noptimizer = torch.optim.optimizer.Optimizer()\n"


def put_torch(folder: Path) -> None:
    """Write the stand-in for torch into a folder of modules."""
    (folder / "torch" / "optim").mkdir(parents=True, exist_ok=True)
    for name in ("torch/__init__.py", "torch/optim/__init__.py"):
        (folder / name).write_text("")
    (folder / "torch/optim/optimizer.py").write_text(OPTIMIZER)
