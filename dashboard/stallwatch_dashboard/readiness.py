"""Ready before the first reader: what the pages import is loaded early, and left alone by the collector.

Streamlit collects garbage of all ages after each run of a script (streamlit 1.58, script_runner.py,
``runner.postScriptGC``). With some 200,000 objects of modules, which never go, that was half of what a page
cost the server, at every refresh, and no other reader's page moved meanwhile. `settle` takes them out of it.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import sys
import threading

#: What the first visits of Runs and Run would import, and so wait for.
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
_MANY = 20  #: modules that are worth another settling

_settled_modules = 0
_lock = threading.Lock()


def begin() -> None:
    """Load what the pages want, beside everything else."""
    threading.Thread(target=_load, name="readiness", daemon=True).start()


def settle() -> None:
    """Leave out of the collections to come what is there now, if modules came since the last time.

    What is garbage by then goes first. What lives then and becomes part of a cycle later stays for good:
    a reader's page or two, as this happens only a few times in the life of the server.
    """
    global _settled_modules
    if len(sys.modules) - _settled_modules < _MANY or not _lock.acquire(blocking=False):
        return
    try:
        _settled_modules = len(sys.modules)
        gc.collect()
        gc.freeze()
        atexit.register(gc.unfreeze)  # else DuckDB takes what is left at the end for leaks, and says so
    finally:
        _lock.release()


def _load() -> None:
    for name in WANTED:
        with contextlib.suppress(ImportError):  # another version of theirs may lack it: who needs it will say
            importlib.import_module(name)
    settle()
