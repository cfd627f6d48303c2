"""What several hooks report: which versions take part, and what is about to fail."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from ..api import Probe

#: Called with an engine, its loss and the frame of its ``backward``, once for each; see ``deepspeed``.
before_backward: list[Callable[[Any, Any, FrameType], None]] = []
_PACKAGES = (
    *("torch", "torch_npu", "deepspeed", "transformers", "accelerate", "trl", "peft", "lightning", "numpy"),
    *("pydantic", "tokenizers", "huggingface_hub", "datasets", "safetensors", "swift", "vllm"),
)


def warn(probe: Probe, rule: str, seen: str, about: str, **captures: str | int) -> None:
    """Tell that `rule` is about to come true; `seen` names the sentence, what has the same `about` is one."""
    told = {name: str(value)[:300] for name, value in captures.items()}
    probe.event("concern", f"{rule} {about}", rule=rule, seen=seen, step=int(probe.steps), **told)


def tell_versions(probe: Probe) -> None:
    """Versions of what is imported by now; nothing is imported for it."""
    found = {name: getattr(sys.modules.get(name), "__version__", None) for name in _PACKAGES}
    versions = {name: str(version) for name, version in found.items() if version is not None}
    probe.event("versions", "versions", python=sys.version.split()[0], **versions)
