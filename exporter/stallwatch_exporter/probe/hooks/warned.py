"""What hooks warn of before it fails, and when they look."""

from __future__ import annotations

from collections.abc import Callable
from types import FrameType
from typing import Any

from ..api import Probe

#: Called with an engine, its loss and the frame of its ``backward``, once for each; see ``deepspeed``.
before_backward: list[Callable[[Any, Any, FrameType], None]] = []


def warn(probe: Probe, rule: str, seen: str, about: str, **captures: str | int) -> None:
    """Tell that `rule` is about to come true; `seen` names the sentence, what has the same `about` is one."""
    told = {name: str(value)[:300] for name, value in captures.items()}
    probe.event("concern", f"{rule} {about}", rule=rule, seen=seen, step=int(probe.steps), **told)
