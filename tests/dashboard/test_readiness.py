import gc
import os
import subprocess
import sys

from stallwatch_dashboard import readiness

_ONCE_LOADED = """
import gc, sys, threading
import stallwatch_dashboard.entry.application
for thread in threading.enumerate():
    if thread.name == "readiness":
        thread.join(120)
from stallwatch_dashboard.readiness import WANTED
print(sorted(set(WANTED) - set(sys.modules)), gc.get_freeze_count() > 50_000, flush=True)
import os
os._exit(0)  # the scraper would go on
"""


def test_pages_are_preloaded_silently(tmp_path):
    env = {**os.environ, "STALLWATCH_HOME": str(tmp_path), "STALLWATCH_CONFIG": os.devnull}
    done = subprocess.run(
        [sys.executable, "-c", _ONCE_LOADED], env=env, capture_output=True, text=True, timeout=300
    )
    assert done.stdout.strip() == "[] True", done.stderr
    assert "readiness" not in done.stderr  # Streamlit's warnings contain the name of the thread


def test_garbage_collector_is_frozen_once_per_new_modules(monkeypatch):
    frozen = []
    monkeypatch.setattr(gc, "freeze", lambda: frozen.append(len(sys.modules)))
    monkeypatch.setattr(readiness, "_settled_modules", 0)
    readiness.freeze_loaded_objects()
    readiness.freeze_loaded_objects()
    assert len(frozen) == 1

    for number in range(readiness._MANY):
        monkeypatch.setitem(sys.modules, f"came_later_{number}", sys)
    readiness.freeze_loaded_objects()
    assert len(frozen) == 2
