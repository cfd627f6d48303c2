"""Which versions take part."""

from __future__ import annotations

import sys

from ..api import Probe

_PACKAGES = (
    *("torch", "torch_npu", "deepspeed", "transformers", "accelerate", "trl", "peft", "lightning", "numpy"),
    *("pydantic", "tokenizers", "huggingface_hub", "datasets", "safetensors", "swift", "vllm"),
)


def tell_versions(probe: Probe) -> None:
    """Versions of what is imported by now; nothing is imported for it."""
    found = {name: getattr(sys.modules.get(name), "__version__", None) for name in _PACKAGES}
    versions = {name: str(version) for name, version in found.items() if version is not None}
    probe.event("versions", "versions", python=sys.version.split()[0], **versions)
