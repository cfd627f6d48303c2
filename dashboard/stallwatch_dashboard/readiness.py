"""Prepare for the first request: import modules early and exempt their objects from garbage collection.

Streamlit collects garbage of all generations after each run of a script (streamlit 1.58, script_runner.py,
``runner.postScriptGC``). Modules have about 200,000 objects that are never freed. Checking these objects
would take half of the server's time for each page refresh and block all other users' pages.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import sys
import threading

#: Modules that the first visits to the Runs page and the Run page would otherwise import.
WANTED = (
    "PIL.Image",
    "pyarrow.pandas_compat",
    "streamlit.emojis",
    "streamlit.components.v1",
    "stallwatch_dashboard.pages.common",
    "stallwatch_dashboard.pages.runs_table",
    "stallwatch_dashboard.pages.incident",
    "stallwatch_dashboard.pages.signin",
    "stallwatch_dashboard.data.log_copies",
)
_MANY = 20  #: number of new modules after which `freeze_loaded_objects` has an effect again

_settled_modules = 0
_lock = threading.Lock()


def begin() -> None:
    """Import the modules of the pages in a background thread."""
    threading.Thread(target=_load, name="readiness", daemon=True).start()


def freeze_loaded_objects() -> None:
    """If many modules were imported after the last call, exempt all current objects from later collections.

    An object that later becomes garbage in a reference cycle is never freed. There are few such objects,
    because this function collects existing garbage first and has an effect only a few times in each process.
    """
    global _settled_modules
    if len(sys.modules) - _settled_modules < _MANY or not _lock.acquire(blocking=False):
        return
    try:
        _settled_modules = len(sys.modules)
        gc.collect()
        gc.freeze()
        atexit.register(gc.unfreeze)  # otherwise, DuckDB reports remaining objects as leaks
    finally:
        _lock.release()


def _load() -> None:
    for name in WANTED:
        # A different version of a package might not have this module. The page that needs the module
        # reports the error.
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    freeze_loaded_objects()
