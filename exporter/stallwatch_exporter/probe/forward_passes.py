"""Count forward passes while the agent suspects a stall.

Counting starts when the agent queries the process. It ends at the next step, or ten minutes after the last
query. To count, the probe replaces ``__call__`` in the class ``Module``, because Python looks up this
method for each call to a module. If torch's compiler has compiled anything, the probe does not change the
class, because compiled code depends on it. A later compilation ends the counting.
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


class ForwardPasses:
    """Counter of the forward passes in a process.

    The count is stored in the record of the process's probe.
    """

    def __init__(self, probe: Probe) -> None:
        self._probe = probe
        self._until = 0.0
        self._cls: Any = None
        self._ours: Any = None
        self._turn = _thread.allocate_lock()  # acquired without waiting, so that no step is delayed

    def begin(self) -> None:
        """Start or extend the counting. The probe calls this method on each query from the agent."""
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
            return  # other code, or the parent process before the fork, has replaced the method
        row = self._probe.row
        if row[_FORWARDS] != row[_FORWARDS]:
            row[_FORWARDS] = 0.0
        ours = _CountedCall(function, self._probe)
        cls.__call__ = ours
        self._cls, self._ours = cls, ours
        self._probe.stop_counting = self.end
        self._probe.due_at = 0.0  # the next step gets its own record, instead of only being counted

    def end(self) -> None:
        """Restore the original ``__call__``, unless other code has replaced the method since `begin`."""
        if not self._turn.acquire(False):
            return  # another thread is restoring the method, or the next step calls `end` again
        try:
            ours, self._ours = self._ours, None
            self._probe.stop_counting = None
            if ours is not None and vars(self._cls).get("__call__") is ours:
                self._cls.__call__ = ours.function
        finally:
            self._turn.release()

    def left(self) -> float | None:
        """Return the number of seconds until the counting ends. If the end is due, end the counting.

        Return ``None`` if nothing is being counted.
        """
        if self._ours is None:
            return None
        left = self._until - time.monotonic()
        if left <= 0.0:
            self.end()
            return None
        return left


class _CountedCall:
    """Descriptor that replaces ``Module.__call__`` and only counts its lookups."""

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
