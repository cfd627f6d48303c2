"""The probe's hooks in a process that ``stallwatch run`` did not start: asked for by a callback."""

from __future__ import annotations

import os
import sys
from importlib import import_module

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
