"""The probe's hooks in a process that ``stallwatch run`` did not start: for callbacks and ``watch``."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import Any

from stallwatch.integrations.loop import api, probe

_hooked = False


def hook(name: str | None = None) -> None:
    """Notice what the libraries do from here on, as under ``stallwatch run``; what fails is told once."""
    global _hooked
    try:
        told = probe(name)
        module = api()
        if _hooked or "stallwatch_probe" in sys.modules or os.environ.get(module.SWITCH_VARIABLE) == "0":
            return
        _hooked = True
        told.is_rank = True
        import_module(f"{module.__package__}.imports").watch()
    except Exception as error:
        from stallwatch_exporter.notices import tell

        tell(f"the trainer is not watched ({type(error).__name__}: {error}); the training goes on")


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
                import_module(f"{hooks}.zero").watch_trace(sys.modules[_COORDINATOR], told)
    except Exception as error:
        from stallwatch_exporter.notices import tell

        tell(f"the engine is not watched ({type(error).__name__}: {error}); the training goes on")
    return engine
