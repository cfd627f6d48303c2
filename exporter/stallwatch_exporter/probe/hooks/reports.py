"""Provide functions that several hooks use to report versions, imminent failures, and user code locations."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from ..api import Probe

#: Functions that are called once for each ``backward``, with the engine, its loss, and the frame. They must
#: not raise errors.
before_backward: list[Callable[[Any, Any, FrameType], None]] = []
_PACKAGES = (
    *("torch", "torch_npu", "deepspeed", "transformers", "accelerate", "trl", "peft", "lightning", "numpy"),
    *("pydantic", "tokenizers", "huggingface_hub", "datasets", "safetensors", "swift", "vllm"),
)
_MOST_FRAMES = 100
_LIBRARIES = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")
_STANDARD = f"{Path(os.__file__).parent}{os.sep}"


def warn(probe: Probe, rule: str, seen: str, about: str, **captures: str | int) -> None:
    """Report that the failure that `rule` describes is imminent, but only once for each value of `about`.

    `seen` is the ID of the message that explains what was observed.
    """
    texts = {name: str(value)[:300] for name, value in captures.items()}
    probe.event("concern", f"{rule} {about}", rule=rule, seen=seen, step=int(probe.steps), **texts)


def report_versions(probe: Probe) -> None:
    """Report the versions of imported packages without importing further packages."""
    found = {name: getattr(sys.modules.get(name), "__version__", None) for name in _PACKAGES}
    versions = {name: str(version) for name, version in found.items() if version is not None}
    probe.event("versions", "versions", python=sys.version.split()[0], **versions)


def place_of(frame: FrameType | None) -> str:
    """Return ``file:line`` of the innermost call outside libraries, or of `frame` if no such call exists."""
    shown = own_frame(frame) or frame
    return f"{shown.f_code.co_filename}:{shown.f_lineno}" if shown is not None else ""


def own_frame(frame: FrameType | None) -> FrameType | None:
    """Return the frame of the innermost call outside libraries, or ``None``."""
    for _ in range(_MOST_FRAMES):
        if frame is None or is_own(frame.f_code.co_filename):
            return frame
        frame = frame.f_back
    return None


def is_own(path: str) -> bool:
    """Return whether a file belongs to the user rather than to a library or the interpreter."""
    if path.startswith("<") or any(part in path for part in _LIBRARIES):
        return False
    return not path.startswith(_STANDARD)


def quietly(call: Callable[..., None], probe: Probe) -> Callable[..., None]:
    """Wrap a function that other code calls, so that its errors are counted but never raised."""

    def quiet(*given: Any) -> None:
        try:
            call(*given)
        except Exception:
            probe.failed()

    return quiet
