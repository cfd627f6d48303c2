"""Hooks for libraries: installed after the training itself has imported them, never before.

Nothing is wrapped around an import, so a traceback through one looks as always. Instead a finder that finds
nothing is asked first for each module that is not imported yet; it looks whether one of the libraries has
finished meanwhile. Each library imports further modules after the one that is waited for.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

#: The module to wait for → the hook to install then, a module of ``hooks`` with ``install(module, probe)``.
HOOKS = {
    "torch.optim.optimizer": "torch",
    "deepspeed.runtime.engine": "deepspeed",
    "deepspeed.runtime.zero.partitioned_param_coordinator": "trace_cache",
}


class Watcher:
    """A meta-path finder that only looks."""

    def __init__(self, hooks: dict[str, str] = HOOKS) -> None:
        self._hooks = hooks
        self._waiting = dict(hooks)
        self._inside = False

    def find_spec(self, *_: Any) -> None:
        """Find nothing; install what has become due."""
        if self._waiting and not self._inside:
            self._inside = True
            try:
                for module in list(self._waiting):
                    if module in sys.modules:
                        self._look(module)
            except Exception:
                self._failed()
            finally:
                self._inside = False

    def _look(self, name: str) -> None:
        module = sys.modules[name]
        if getattr(getattr(module, "__spec__", None), "_initializing", False):
            return
        del self._waiting[name]  # first: what fails is not tried again
        from .api import current

        probe = current()
        import_module(f".hooks.{self._hooks[name]}", __package__).install(module, probe)

    @staticmethod
    def _failed() -> None:
        try:
            from .api import current

            current().failed()
        except Exception:
            pass


def watch() -> Watcher:
    """Begin to look, for libraries that are imported already and for those to come."""
    watcher = Watcher()
    sys.meta_path.insert(0, watcher)
    watcher.find_spec()
    return watcher
