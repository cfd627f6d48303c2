"""Forward passes, counted only while the agent suspects a stall: nothing is noticed of them otherwise.

A question of the agent begins it, and the next step or ten minutes end it. Each call of a module looks
``__call__`` up in its class. If torch's compiler has compiled anything, that is left alone: what is compiled
depends on the class. A compilation that begins meanwhile ends it.
"""

from __future__ import annotations

import sys
import time

from .draft import INDEX
from .noticing import NoticedMethod

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .api import Probe

MOST_SECONDS = 600.0
_FORWARDS = INDEX["forwards"]


class Listening:
    """Counts forward passes of one process in the row of its probe."""

    def __init__(self, probe: Probe) -> None:
        self._probe = probe
        self._until = 0.0
        self._cls: Any = None
        self._ours: Any = None

    def begin(self) -> None:
        """Count from now on; the agent's question asks for it, again and again."""
        self._until = time.monotonic() + MOST_SECONDS
        module = sys.modules.get("torch.nn.modules.module")
        if module is None or self._ours is not None or _has_compiled():
            return
        cls = module.Module
        function = vars(cls).get("__call__")
        if isinstance(function, NoticedMethod):
            return  # somebody else's
        row = self._probe.row
        if row[_FORWARDS] != row[_FORWARDS]:
            row[_FORWARDS] = 0.0
        self._cls, self._ours = cls, _CountedCall(function, self._probe)
        self._probe.ends_listening = self.end
        cls.__call__ = self._ours
        self._probe.due_at = 0.0  # the next step is told, not only counted

    def end(self) -> None:
        """Put back what was there, unless somebody else has replaced it since."""
        ours, self._ours = self._ours, None
        self._probe.ends_listening = None
        if ours is not None and vars(self._cls).get("__call__") is ours:
            self._cls.__call__ = ours.function

    def left(self) -> float | None:
        """Seconds until it ends by itself, which it does here; ``None`` if it is not under way."""
        if self._ours is None:
            return None
        left = self._until - time.monotonic()
        if left <= 0.0:
            self.end()
            return None
        return left


class _CountedCall:
    """Stands for ``Module.__call__``, as a `NoticedMethod` that counts and does no more."""

    def __init__(self, function: Any, probe: Probe) -> None:
        self.function = function
        self._bind = function.__get__
        self._probe = probe

    def __get__(self, obj: Any, owner: Any = None) -> Any:
        if obj is not None:
            self._probe.row[_FORWARDS] += 1.0
        return self._bind(obj, owner)


def _has_compiled() -> bool:
    counters = getattr(sys.modules.get("torch._dynamo.utils"), "counters", None)
    return bool(counters and counters.get("frames"))
