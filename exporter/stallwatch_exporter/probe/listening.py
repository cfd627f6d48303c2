"""Count forward passes, only while the agent suspects a stall; otherwise they are not observed.

A query by the agent starts it, and the next step or ten minutes end it. Each call of a module looks
``__call__`` up in its class. If torch's compiler has compiled anything, that is left alone: compiled code
depends on the class. A compilation that begins meanwhile ends it.
"""

from __future__ import annotations

import _thread
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
        self._turn = _thread.allocate_lock()  # only tried: a step never waits for the answering thread

    def begin(self) -> None:
        """Count from now on; each query by the agent calls it again."""
        self._until = time.monotonic() + MOST_SECONDS
        if self._turn.acquire(False):
            try:
                self._begin()
            finally:
                self._turn.release()

    def _begin(self) -> None:
        module = sys.modules.get("torch.nn.modules.module")
        if module is None or self._ours is not None or _has_compiled():
            return
        cls = module.Module
        function = vars(cls).get("__call__")
        if isinstance(function, (NoticedMethod, _CountedCall)):
            return  # set by other code, or counted by the process that this was forked from
        row = self._probe.row
        if row[_FORWARDS] != row[_FORWARDS]:
            row[_FORWARDS] = 0.0
        ours = _CountedCall(function, self._probe)
        cls.__call__ = ours
        self._cls, self._ours = cls, ours
        self._probe.ends_listening = self.end
        self._probe.due_at = 0.0  # so that the next step gets a record, and is not only counted

    def end(self) -> None:
        """Restore the original, unless other code has replaced it since."""
        if not self._turn.acquire(False):
            return  # the other thread is doing it; the next step calls this again
        try:
            ours, self._ours = self._ours, None
            self._probe.ends_listening = None
            if ours is not None and vars(self._cls).get("__call__") is ours:
                self._cls.__call__ = ours.function
        finally:
            self._turn.release()

    def left(self) -> float | None:
        """Return the seconds until it ends, and end it when due; ``None`` if it is not counting."""
        if self._ours is None:
            return None
        left = self._until - time.monotonic()
        if left <= 0.0:
            self.end()
            return None
        return left


class _CountedCall:
    """Stands for ``Module.__call__``, like a `NoticedMethod` that only counts."""

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
