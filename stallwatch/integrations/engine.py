"""``stallwatch.watch(engine)`` for a DeepSpeed engine in a process that ``stallwatch run`` did not start."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

from stallwatch.integrations.loop import api, probe

_ENGINE = "deepspeed.runtime.engine"
_COORDINATOR = "deepspeed.runtime.zero.partitioned_param_coordinator"
_watched = False


def watch(engine: Any) -> Any:
    """Tell of this engine's steps, losses and trace-cache invalidations; returns the engine."""
    global _watched
    try:
        told = probe()
        if not _watched and "stallwatch_probe" not in sys.modules:
            _watched = True
            hooks = f"{api().__package__}.hooks"
            told.is_rank = True
            told.samplers += [
                import_module(f"{hooks}.torch").accelerator_memory,
                import_module(f"{hooks}.torch").resident_memory,
            ]
            import_module(f"{hooks}.deepspeed").install(sys.modules[_ENGINE], told, engine)
            if _COORDINATOR in sys.modules:
                import_module(f"{hooks}.trace_cache").install(sys.modules[_COORDINATOR], told)
    except Exception as error:
        from stallwatch_exporter.notices import tell

        tell(f"the engine is not watched ({type(error).__name__}: {error}); the training goes on")
    return engine
